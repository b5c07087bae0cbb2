"""All checks of one site. They are computed from arrays, and need no network and no estimator."""

import torch
from torch import Tensor

from sitewise.adaptation import PrevalenceEstimate
from sitewise.adaptation.answer import fit_of
from sitewise.adaptation.known import CONTRADICTED, contradiction_sentence
from sitewise.calibration.fit import centre
from sitewise.confounders import Confounders
from sitewise.confounders.variables import Categorical
from sitewise.diagnosis.coverage import TrainingTable, check_coverage, check_positivity
from sitewise.diagnosis.identification import check_identification, draw_calibrations, slope_in_errors
from sitewise.diagnosis.matching import EFFECTIVE, FEWEST, Matched, match
from sitewise.diagnosis.mixture import check_mixture
from sitewise.diagnosis.optimization import check_optimization
from sitewise.diagnosis.reliability import check_calibration
from sitewise.diagnosis.representation import Representation, compare_features
from sitewise.diagnosis.result import Diagnosis, Finding, conclude, holm
from sitewise.diagnosis.samples import SourceSample, TargetSample, by_groups, count, evenly
from sitewise.diagnosis.stability import Stability, compare_log_ratios, make_strata

TESTED_ROWS = 5000  # largest number of rows of each sample; more would only find shifts too small to matter
STOP_LEVEL, CARE_LEVEL = 0.01, 0.05  # for p-values adjusted by Holm's method over both tests
STOP_GAP = 0.02  # gap of distribution functions from which a significant difference means stop, not care
STOP_AUC = 0.53  # the same for the AUC of the classifier between the samples

BLIND = "It cannot see a shift that looks like another prevalence."
MORE_ROWS = "Hold more rows out (validation=), or call model.calibrate with labeled rows like those here."
SHIFTED = (
    "Do not rely on adapted numbers: look for a change of equipment, protocol or patients, or label some rows here."
)
AGREE = "The rows do not contradict the known prevalence (p = {p:.2g})."
ADVICE = "Check whose prevalence it is, or label some rows here: labels show which of the two is wrong."


def diagnose_site(
    source: SourceSample,
    target: TargetSample,
    estimate: PrevalenceEstimate,
    *,
    table: TrainingTable | None = None,
    random_state: int = 0,
) -> Diagnosis:
    """Check whether a site's rows support adapting to it.

    Parameters
    ----------
    source : SourceSample
        Held-out labeled rows to compare the site with.
    target : TargetSample
        The site's rows, from which `estimate` was computed.
    estimate : PrevalenceEstimate
        The site's g.
    table : TrainingTable, optional
        Counts of the training rows, for coverage and positivity.
    random_state : int
        Seed of the resamples of the held-out rows, to which the calibration is refitted.

    Returns
    -------
    Diagnosis
        All findings, and the verdict of the most severe finding.
    """
    schema = estimate.confounders
    resamples = draw_calibrations(source, random_state)
    stability, representation = run_tests(source, target, estimate)
    p_values = [test.p_value for test in (stability, representation) if test is not None]
    adjusted = iter(holm(p_values))
    return conclude(
        (
            stability_finding(stability, next(adjusted) if stability else None, source, target),
            representation_finding(representation, next(adjusted) if representation else None, source, target),
            check_identification(source, target, estimate, resamples),
            check_mixture(source, target, estimate),
            check_calibration(source, slope_in_errors(source.calibration, resamples)),
            check_coverage(target.codes, target.weight, estimate.notes, table, schema),
            check_positivity(target.codes, target.weight, target.supported, table, schema),
            check_optimization(target, estimate),
            *check_known(estimate),
        ),
    )


def run_tests(
    source: SourceSample, target: TargetSample, estimate: PrevalenceEstimate
) -> tuple[Stability | None, Representation | None]:
    """Run both tests of the assumption; None for a test that has too few rows."""
    schema = estimate.confounders
    own, others = comparable(source, target, schema)
    held, here = source.take(evenly(own, TESTED_ROWS)), target.take(evenly(others, TESTED_ROWS))
    both = matched(held, here, estimate)
    if both is None:
        return None, None
    strata = make_strata(held.codes, here.codes, schema, held.groups, here.groups)
    own_scores, scores = (centre(bounded(sample.log_ratio)) for sample in (held, here))
    stability = compare_log_ratios(both, own_scores, scores, *strata)
    if source.features is None or target.features is None:
        return stability, None
    assert source.feature_rows is not None
    assert target.feature_rows is not None
    first, second = torch.isin(source.feature_rows, own), torch.isin(target.feature_rows, others)
    both = matched(source.take(source.feature_rows[first]), target.take(target.feature_rows[second]), estimate)
    if both is None:
        return stability, None
    return stability, compare_features(both, source.features[first], target.features[second])


def matched(source: SourceSample, target: TargetSample, estimate: PrevalenceEstimate) -> Matched | None:
    """Weight the source's rows to the site's (y, z); return None if a class has too few effective rows or groups."""
    if int(source.units.min()) < FEWEST or target.n_units < FEWEST:
        return None
    at = estimate.prevalence.log_prob
    weighted = match(
        source.codes,
        source.y,
        source.mixed_weight,
        target.codes,
        target.weight,
        at(target.codes).exp(),
        at(source.codes).exp(),
        estimate.confounders,
        source.groups,
        target.groups,
    )
    return weighted if bool((weighted.effective_rows() >= EFFECTIVE).all()) else None


def comparable(source: SourceSample, target: TargetSample, schema: Confounders | None) -> tuple[Tensor, Tensor]:
    """Return the rows of each sample whose levels of z, or missing values, occur in the other sample too.

    Rows of zero weight, and rows of the site that are not tested or at which f is not identified, are left out.
    """
    ours, theirs = source.weight > 0, target.tested & target.supported & (target.weight > 0)
    for j, variable in enumerate(() if schema is None else schema.variables):
        first, second = source.codes[:, j], target.codes[:, j]
        if not isinstance(variable, Categorical):
            first, second = ((column == variable.missing_code).double() for column in (first, second))
        ours = ours & torch.isin(first, torch.unique(second[theirs]))
        theirs = theirs & torch.isin(second, torch.unique(first[ours]))
    return ours.nonzero().flatten(), theirs.nonzero().flatten()


def bounded(log_ratio: Tensor) -> Tensor:
    """Normalize log-ratios, and replace infinite ones by a large finite number, so that they can be compared."""
    return torch.nan_to_num(torch.log_softmax(log_ratio, dim=1), neginf=-1e3).clamp_min(-1e3)


def stability_finding(
    test: Stability | None, adjusted: float | None, source: SourceSample, target: TargetSample
) -> Finding:
    """Describe the test of the log-ratios."""
    name = "stability"
    n_source, n_target = len(source.y), int(target.tested.sum())
    if test is None or adjusted is None:
        units = ["rows" if sample.groups is None else "groups" for sample in (source, target)]
        sentence = (
            f"Not tested: it takes {EFFECTIVE:.0f} held-out {units[0]} of every class ({source.units.tolist()} here) "
            f"with a mix of z like this site's, and {FEWEST} {units[1]} of the site with the same parts of z "
            f"({count(target.groups, target.tested)} here)."
        )
        return Finding(name, "care", None, STOP_LEVEL, sentence, MORE_ROWS)
    severity = grade(adjusted, test.gap >= STOP_GAP)
    details = {"gap": test.gap, "statistic": test.statistic, "adjusted_p_value": adjusted}
    details |= {"held_out_rows": n_source, "rows": n_target, **source.group_counts, **target.group_counts}
    by = by_groups(source, target)
    if severity == "good":
        sentence = (
            f"The model's scores here look like those of held-out rows at this prevalence (p = {test.p_value:.2g}{by})."
        )
        return Finding(name, severity, adjusted, CARE_LEVEL, f"{sentence} {BLIND}", SHIFTED, test.p_value, details)
    threshold = STOP_LEVEL if severity == "stop" else CARE_LEVEL
    sentence = (
        "The model's scores here are not what held-out rows have at any prevalence "
        f"(p = {test.p_value:.2g}{by}, distributions differ by {100 * test.gap:.1f} points): "
        "rows of one class differ from those in training."
    )
    return Finding(name, severity, adjusted, threshold, sentence, SHIFTED, test.p_value, details)


def representation_finding(
    test: Representation | None, adjusted: float | None, source: SourceSample, target: TargetSample
) -> Finding:
    """Describe the test of the features."""
    name = "representation"
    if test is None or adjusted is None:
        reason, advice = (
            "no features were kept",
            "Only a network trained by sitewise and adapted with adapt(X, ...) has features to check.",
        )
        if target.features is not None:
            reason, advice = "there are too few rows for it, or the features never vary", MORE_ROWS
        return Finding(name, "unknown", None, STOP_LEVEL, f"Not tested: {reason}.", advice)
    severity = grade(adjusted, test.auc >= STOP_AUC)
    details = {"auc": test.auc, "adjusted_p_value": adjusted, **source.group_counts, **target.group_counts}
    by = by_groups(source, target)
    if severity == "good":
        sentence = (
            "A classifier can't tell this site's rows from held-out rows with the same mix of classes and z "
            f"(AUC {test.auc:.2f}, p = {test.p_value:.2g}{by})."
        )
        return Finding(name, severity, adjusted, CARE_LEVEL, sentence, SHIFTED, test.p_value, details)
    threshold = STOP_LEVEL if severity == "stop" else CARE_LEVEL
    sentence = (
        f"A classifier tells this site's rows from held-out rows with the same mix of classes and z "
        f"(AUC {test.auc:.2f}, p = {test.p_value:.2g}{by}): the inputs look different to the model."
    )
    return Finding(name, severity, adjusted, threshold, sentence, SHIFTED, test.p_value, details)


def grade(adjusted: float, large: bool) -> str:
    """Return "stop" if p < 0.01 and the shift is large, otherwise "care" if p < 0.05, otherwise "good"."""
    if adjusted < STOP_LEVEL and large:
        return "stop"
    return "care" if adjusted < CARE_LEVEL else "good"


def check_known(estimate: PrevalenceEstimate) -> tuple[Finding, ...]:
    """Return the finding about a known prevalence, if one was given."""
    posterior = fit_of(estimate).posterior
    if posterior is None or posterior.against is None:
        return ()
    against = posterior.against
    details = {"without": against.without[0].tolist(), "known": against.share.tolist(), "of": against.name}
    contradicted = against.p_value < CONTRADICTED
    sentence = f"{contradiction_sentence(against)}." if contradicted else AGREE.format(p=against.p_value)
    severity = "care" if contradicted else "good"
    p_value = against.p_value
    return (Finding("known prevalence", severity, p_value, CONTRADICTED, sentence, ADVICE, p_value, details),)
