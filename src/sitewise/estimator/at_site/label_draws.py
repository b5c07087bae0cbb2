"""The distribution of the unknown labels of a site's rows, with all sources of uncertainty."""

from typing import TYPE_CHECKING

import torch
from sklearn.utils import check_random_state
from torch import Tensor

from sitewise.estimator.source.held_out import resample
from sitewise.estimator.without_z.predicting import lacking, with_joint_marginal
from sitewise.performance.estimate import draw_rows
from sitewise.performance.expected import DrawnRows
from sitewise.performance.labels import OpenShape, ResampledCalibration
from sitewise.posterior import combine
from sitewise.rows import ScoredRows

if TYPE_CHECKING:
    from sitewise.estimator.adapted import AdaptedClassifier
    from sitewise.estimator.model import SiteModel

N_RESAMPLES = 100  # number of resamples of the held-out rows to which a calibration is refitted


def drawn_rows(here: "AdaptedClassifier", rows: ScoredRows | None = None) -> DrawnRows:
    """Return rows with the distribution of their labels, in the form that `sitewise.performance` reads.

    By default, these are the rows that were passed to `adapt`.
    """
    model = here.model
    rows = here.rows_in_use if rows is None else rows
    joint = here.joint_in_use
    schema = model.confounders_
    as_trained = combine(rows.by_knockout().log_ratio, model.pooled_prevalence_.log_prob(rows.codes)).exp()
    return draw_rows(
        rows.log_ratio,
        rows.codes,
        here.estimate_in_use,
        log_prevalence=with_joint_marginal(model, joint, rows.codes, here.log_prevalence_at(rows.codes)),
        supported=rows.supported,
        by_marginal=None if joint is None else lacking(model, rows.codes),
        probability=here.probability_of(rows.log_ratio, rows.codes).numpy(),
        calibrations=resampled_calibrations(model, rows.codes, joint=joint is not None),
        known=None if rows.y is None else rows.y.numpy(),
        weight=rows.weight,
        z=None if schema is None else schema.decode(rows.codes),
        source=(model.training_summary_.n_rows, as_trained.numpy()),
        shape=open_shape(here, len(rows)),
        random_state=model.random_state,
    )


def open_shape(here: "AdaptedClassifier", n_rows: int) -> OpenShape | None:
    """Return the uncertainty of the shape of g over z.

    It follows from the number of training rows, which are labeled, plus the number of labels that have as much
    information as the site's unlabeled rows. None if there is no z, or for policy "rows".
    """
    schema, prior = here.model.confounders_, here.site_prior
    if schema is None or prior is None:
        return None
    effective_rows = n_rows * prior.tempering(n_rows) * (1.0 - prior.missing)
    return OpenShape(schema, here.model.training_summary_.n_rows + effective_rows)


def resampled_calibrations(model: "SiteModel", codes: Tensor, *, joint: bool = False) -> list[ResampledCalibration]:
    """Return the calibrations that rows with these codes of z use, each refitted to resamples of the held-out rows.

    Rows that lack some of z use the second calibration. If `joint` is true, the joint model predicts these rows, and
    the second calibration is left out.
    """
    seed = int(check_random_state(model.random_state).randint(2**31 - 1))
    schema, (complete, hidden) = model.confounders_, model.telling_rows()

    def lacks_some(codes: Tensor) -> Tensor:
        if schema is None:
            return torch.zeros(len(codes), dtype=torch.bool)
        if not codes.shape[1]:  # the model has no z
            return torch.ones(len(codes), dtype=torch.bool)
        return schema.missing(codes).any(dim=1)

    def has_all(codes: Tensor) -> Tensor:
        return ~lacks_some(codes)

    pairs = zip(model.calibrations_, (complete, hidden), (has_all, lacks_some), strict=True)
    return [
        ResampledCalibration(resample(held_out, calibration, N_RESAMPLES, seed), applies)
        for calibration, held_out, applies in pairs
        if calibration.method != "none" and bool(applies(codes).any()) and not (joint and applies is lacks_some)
    ]
