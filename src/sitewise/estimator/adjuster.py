"""PrevalenceAdjuster: adjust the probabilities of any classifier to new sites, without training it again."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from sklearn.base import clone
from sklearn.utils import Tags, _safe_indexing, check_random_state, get_tags, indexable
from torch import Tensor, nn

from sitewise.arrays import Problems, did_you_mean, in_stretches, read_groups, read_weight, shortened
from sitewise.estimator.model import SiteModel, unchanged_on_error
from sitewise.estimator.rehearsing import NO_SITES, REHEARSALS, Fold, RemainingSites, rehearse
from sitewise.estimator.scoring.probabilities import (
    TINY,
    Classifier,
    column_names,
    cross_fit_classifier,
    estimator_problem,
    find_floor,
    is_ready,
    warn_separated,
)
from sitewise.estimator.scoring.ratios import ProbabilityRows, fit_ratio
from sitewise.estimator.source.held_out import score_held_out
from sitewise.estimator.source.prevalences import RowPrevalence, cross_fit
from sitewise.estimator.source.reading import Array, TrainingData, folds, read_classes, read_training_data
from sitewise.estimator.without_z.pairs import (
    PairModel,
    PairRatio,
    fit_pair_model,
    fit_pairs,
    pair_problems,
    pair_reader,
    read_points,
)
from sitewise.estimator.without_z.predicting import MISSING, judged
from sitewise.rows import LabeledRows
from sitewise.solvers import EM

SEES = ("x", "xz", "auto")


class PrevalenceAdjuster(SiteModel):
    """Adjust the probabilities of an existing classifier to the prevalence of each site.

    The adjuster learns log f from the probabilities that the classifier gives for labeled source rows; see
    `classifier_sees`. At a new site, it estimates the prevalence g from unlabeled rows, and predicts with f times g,
    scaled to sum to one (equation 3). The classifier itself is not changed. Without z and with `policy="rows"`, the
    estimate of g is that of label-shift EM with calibrated probabilities (Saerens; Alexandari).

    The probabilities of the source rows must be out-of-sample: the source rows are rows that the classifier was not
    trained on, or their probabilities are from `cross_val_predict`. A classifier is over-confident on its training
    rows, and this cannot always be detected. If there are several sites, pass `sample_domain`. The differences in P(y)
    between sites and the errors of f at left-out sites show how far the rows of a new site can be trusted. The source
    prevalence is kept if the evidence from the rows of the new site is insufficient.

    Parameters
    ----------
    estimator : estimator, torch module or None
        The classifier that turns X into probabilities. None: X holds the probabilities, (n, K). A fitted scikit-learn
        classifier or pipeline, or a `FrozenEstimator`, is used as it is. An unfitted one is fitted to the source rows;
        the probabilities of the source rows are then cross-fitted, each by a fit to other rows. If the classifier has
        no `predict_proba`, the scores of its `decision_function` are used as logits. A torch module must return logits,
        (n, K), or (n, 1) for two classes.
    calibration : {"vector", "bias_corrected", "temperature", "none"}
        The calibration of log f on the source rows, as for `GPAClassifier`.
    prevalence : {"auto", "constant", "table", "additive", "network"}
        The model of g, as for `GPAClassifier`.
    classifier_sees : {"auto", "x", "xz"}
        Whether z is an input of the classifier. "xz": it is. Then log f = log p - log g_s(z), where p is the
        probability that the classifier gives, and g_s is the prevalence P(y|z) of all source rows together. The source
        rows must have the same P(y|z) as the rows that the classifier was trained on. "x": z is not an input. Then
        log f is fitted as a function of log p and z. "auto": "x" or "xz", whichever predicts held-out labels better.
        Without z, log f = log p - log g_s.
    classes : array-like of shape (K,), optional
        The classes, in the order of the columns of probabilities. None: the order of the fitted estimator; without a
        fitted estimator, the sorted labels. If X is a DataFrame of probabilities whose columns are named after the
        classes, the order of its columns does not matter. If the columns had other names at `fit`, the columns of a
        DataFrame from a new site must have these names or the names of the classes.
    random_state : int, RandomState or None
        Seed of the folds.
    joint : DataFrame or array-like of shape (M, V), optional
        Only for a classifier that gives P(y, z|x): a table of the M values of z (one in each row, with all
        confounders), in the order of the classifier's output. The probabilities that the classifier gives, or that X
        holds, then have shape (n, M, K), or (n, M·K) with the K columns of the first value of z first. The
        probabilities of a row sum to one over all columns. Rows of a new site then need no z: the joint distribution
        P(z, y) of the site is estimated from x alone.
    missing : {"auto", "joint", "knockout"}
        Only if `joint` is given: how rows that lack some or all values of z are predicted. "joint": from the site's
        P(z, y). "knockout": from x and the known values of z. "auto": as for `GPAClassifier`.
    rehearsal : {"auto", "sites", "rows", None}
        How `fit` rehearses the adaptation to a new site, as for `GPAClassifier`.
    balance : bool or "auto"
        Whether f is balanced before it is calibrated, as for `GPAClassifier`.
    solver : str or EM
        The solver of g at a new site, as for `GPAClassifier`.
    prevalence_dropout : float
        The dropout of a network g, as for `GPAClassifier`.

    Attributes
    ----------
    classes_ : ndarray of shape (K,)
        The classes, in order.
    sites_ : list
        The names of the source sites.
    confounders_ : Confounders or None
        The schema of z, learned by `fit`; None if there is no z.
    training_summary_ : TrainingSummary
        The number of rows of each class at each source site, and a hash that identifies the data.
    classifier_sees_ : str
        "x" or "xz": the given or the chosen value of `classifier_sees`.
    held_out_nll_ : dict
        The log loss on held-out labels for each value of `classifier_sees` that was tried.
    estimator_ : estimator or None
        The fitted estimator; None if X is the probabilities.
    rehearsal_ : Rehearsal
        The result of the rehearsal, see the parameter `rehearsal`.

    Notes
    -----
    Probabilities of zero are replaced by a positive number, in source rows and in rows of a new site. If a source row
    has a zero, this number is half the smallest positive probability of the source rows, but at least 1e-12. Otherwise
    it is 1e-12. Rows whose probabilities do not sum to one (within 0.001) raise an error.

    Examples
    --------
    >>> proba = cross_val_predict(forest, X, y, method="predict_proba")
    >>> post = PrevalenceAdjuster().fit(proba, y, sample_confounder=Z, sample_domain=hospital)
    >>> here = post.adapt(forest.predict_proba(X_new), sample_confounder=Z_new)
    >>> here.prevalence(), here.predict_proba(forest.predict_proba(X_new), sample_confounder=Z_new)

    A classifier of pairs (sex, diagnosis), at a site that does not record sex:

    >>> pairs = PrevalenceAdjuster(joint=pd.DataFrame({"sex": ["f", "m"]}))
    >>> pairs.fit(proba_of_pairs, y, sample_confounder=Z, sample_domain=hospital)
    >>> here = pairs.adapt(proba_of_pairs_new)
    """

    joint_: PairModel | None = None
    knockout = 0.5  # probability of hiding a variable of z, so that f and g also learn the case without it
    _column_names: tuple[str, ...] | None = None  # column names of the frame of probabilities at fit

    def __init__(
        self,
        estimator: Any = None,
        calibration: str = "vector",
        prevalence: str = "auto",
        classifier_sees: str = "auto",
        *,
        classes: Any = None,
        random_state: Any = 0,
        joint: Any = None,
        missing: str = "auto",
        rehearsal: str | None = "auto",
        balance: bool | str = "auto",
        solver: str | EM = "auto",
        prevalence_dropout: float = 0.0,
    ) -> None:
        self.estimator = estimator
        self.calibration = calibration
        self.prevalence = prevalence
        self.classifier_sees = classifier_sees
        self.classes = classes
        self.random_state = random_state
        self.joint = joint
        self.missing = missing
        self.rehearsal = rehearsal
        self.balance = balance
        self.solver = solver
        self.prevalence_dropout = prevalence_dropout

    def fit(
        self,
        X: Any,
        y: Any,
        sample_domain: Any = None,
        sample_confounder: Any = None,
        groups: Any = None,
        sample_weight: Any = None,
    ) -> Self:
        """Learn log f and the g of each site from labeled source rows, and rehearse adaptation.

        Parameters
        ----------
        X : array-like of shape (n, K), (n, M, K) or (n, d)
            Inputs of the estimator. Without an estimator: probabilities of the K classes, or, if `joint` is given, of
            the pairs of a value of z and a class.
        y : array-like of shape (n,)
            Labels.
        sample_domain : array-like of shape (n,), optional
            The site of each row. None: all rows belong to one site.
        sample_confounder : DataFrame or array-like of shape (n, V), optional
            The confounders z, NaN where missing.
        groups : array-like of shape (n,), optional
            The patient (or other group) of each row. In cross-fitting, the rows of a patient are never split between
            folds. Checks count patients instead of rows.
        sample_weight : array-like of shape (n,), optional
            Weights of the rows.

        Returns
        -------
        PrevalenceAdjuster
            Itself, fitted.
        """
        with unchanged_on_error(self):
            self._check_settings()
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            classifier, log_proba = self._score_source(X, y, groups, sample_weight, seed)
            data = read_training_data(log_proba, y, sample_domain, sample_confounder, groups, sample_weight)
            data = data.in_order(classifier.classes)
            if self.rehearsal == "sites" and len(data.site_names) < 2:
                raise ValueError("PrevalenceAdjuster: " + NO_SITES.format(count=len(data.site_names)))
            warn_separated(classifier.by_class(data.rows.X), data.rows.y)  # type: ignore[arg-type]
            self._learn(data, seed)
            self.classifier_, self.estimator_ = classifier, classifier.estimator
            self._note_inputs(X)
            self.rehearsal_ = rehearse(self, data, lambda parts: self._fit_folds(parts, data, X, seed))
            self.prior_ = self.rehearsal_.numbers.put_into(self.prior_)
        return self

    def _check_settings(self) -> None:
        problems = Problems("PrevalenceAdjuster")
        self._check_scaling(problems)
        self._check_prevalence(problems)
        problem = estimator_problem(self.estimator)
        if problem is not None:
            problems.add(problem)
        for name, known in (
            ("classifier_sees", SEES),
            ("missing", MISSING),
            ("rehearsal", REHEARSALS),
        ):
            value = getattr(self, name)
            if value not in known:
                options = [str(option) for option in known]
                problems.add(f"{name} must be one of {', '.join(options)}, got {value!r}{did_you_mean(value, options)}")
        for problem in pair_problems(self, self.estimator is None or is_ready(self.estimator)):
            problems.add(problem)
        if self.classes is not None and len(set(np.asarray(self.classes).tolist())) != np.size(self.classes):
            problems.add(f"classes must name each class once, got {list(self.classes)}")
        problems.raise_if_any()

    def _score_source(self, X: Any, y: Any, groups: Any, weight: Any, seed: int) -> tuple[Classifier, Tensor]:
        """Return the classifier, and its log p of the source rows."""
        problems = Problems("fit")
        labels, target = read_classes(y, problems)
        problems.raise_if_any()
        classes = self._class_order(labels, problems)
        group = read_groups(groups, len(target), problems)
        known_weight = None if weight is None else read_weight(weight, len(target), problems).numpy()
        problems.raise_if_any()
        if self.estimator is not None and not is_ready(self.estimator):
            return cross_fit_classifier(self.estimator, X, labels[target], classes, group, known_weight, seed)
        classifier = pair_reader(self.estimator, classes, self.joint, TINY)
        if not classifier.gives_probabilities:
            return classifier, classifier.log_proba(X)
        probabilities = classifier.probabilities(X)
        classifier = replace(classifier, floor=find_floor(probabilities))
        return classifier, probabilities.clamp_min(classifier.floor).log()

    def _class_order(self, labels: Array, problems: Problems) -> Array:
        """Return the classes in the order of the columns; add unknown labels to `problems`."""
        fitted = self.joint is None and is_ready(self.estimator) and hasattr(self.estimator, "classes_")
        classes = np.asarray(self.estimator.classes_) if fitted else labels
        if self.classes is not None:
            given = np.asarray(self.classes)
            if fitted and given.tolist() != classes.tolist():
                problems.add(f"classes is {given.tolist()}, but the estimator has the order {classes.tolist()}")
            classes = given
        unknown = [label for label in labels.tolist() if label not in classes.tolist()]
        if unknown:
            meant = did_you_mean(unknown[0], classes.tolist())
            problems.add(f"y holds {unknown}, which are not among the classes {classes.tolist()}{meant}")
        return classes

    def _learn(self, data: TrainingData, seed: int) -> None:
        """Learn everything except the classifier, from checked rows whose X is log p."""
        rows, schema = data.rows, data.schema
        self._learn_sites(data, rows, seed)
        own = cross_fit(self.fit_prevalence, rows, seed)
        if self.joint is not None:
            self._learn_pairs(rows, own)
            return
        masked = rows.codes
        if schema is not None:
            hidden = torch.rand(rows.codes.shape, generator=torch.Generator().manual_seed(seed)) < self.knockout
            masked = schema.knock_out(rows.codes, hidden)
        at_full, at_masked = own.log_prob(rows.codes), own.log_prob(masked)
        assert isinstance(rows.X, Tensor)
        scored = rows.extended(
            ProbabilityRows,
            weight=rows.weight.double(),
            log_proba=rows.X,
            log_prevalence=at_full,
            masked_codes=masked,
            masked_log_prevalence=at_masked,
        )
        chosen = fit_ratio(
            scored,
            schema,
            self.pooled_prevalence_,
            sees=self.classifier_sees,
            calibration=self.calibration,
            folds=folds(rows, seed),
        )
        self.ratio_, self.classifier_sees_, self.held_out_nll_ = chosen.ratio, chosen.sees, chosen.nll
        numbered = replace(rows, X=torch.arange(len(rows))[:, None])
        self._balance_and_calibrate(score_held_out(numbered, own, schema, chosen.cross_fitted.score))
        self.joint_ = None

    def _learn_pairs(self, rows: LabeledRows, own: RowPrevalence) -> None:
        """Learn the ratio r (equation 15) from log P(y, z|x) of checked rows; log f needs no fit."""
        points = read_points(self.joint, self.confounders_)
        assert self.confounders_ is not None
        bank, prior = fit_pairs(rows, points, self.confounders_, len(self.classes_))
        self.ratio_ = PairRatio(bank, self.pooled_prevalence_)
        self.classifier_sees_, self.held_out_nll_ = "xz", {}
        self._balance_and_calibrate(score_held_out(rows, own, self.confounders_, self.score_raw))  # type: ignore[arg-type]
        self.joint_ = fit_pair_model(rows, bank, prior, self.unsupported_, self.calibration)
        self.joint_ = judged(self, rows)  # type: ignore[assignment]

    def _note_inputs(self, X: Any) -> None:
        """Set the number and the names of the features, if they are known."""
        source = self.estimator_ if self.estimator_ is not None else None
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self, name):
                delattr(self, name)
            if hasattr(source, name) and not isinstance(source, nn.Module):
                setattr(self, name, getattr(source, name))
        if source is None:
            self.n_features_in_ = len(self.classifier_.columns)
        self._column_names = column_names(X) if source is None and isinstance(X, pd.DataFrame) else None

    def _fit_folds(self, parts: list[RemainingSites], data: TrainingData, X: Any, seed: int) -> Iterator[Fold]:
        """Fit an adjuster for each part: g, log f, calibration, and also the estimator if it was given unfitted."""
        refits = self.estimator is not None and not is_ready(self.estimator)
        for part in parts:
            fold, own = clone(self), part.data
            inputs: Callable[[Tensor], Any] = data.rows.X.__getitem__  # log p, the same in all folds
            if refits:
                classifier, log_proba = self._refit(part, data.classes, X, seed)
                own = replace(own, rows=replace(own.rows, X=log_proba))
                inputs = partial(_log_proba_of, classifier, X)
            fold._learn(own, seed)
            yield Fold(fold, inputs)

    def _refit(self, part: RemainingSites, classes: Array, X: Any, seed: int) -> tuple[Classifier, Tensor]:
        """Fit the estimator to the rows of a part; return it with the cross-fitted log p of these rows."""
        rows = part.data.rows
        weight = None if bool((rows.weight == 1).all()) else rows.weight.double().numpy()
        y, some = classes[rows.y.numpy()], _safe_indexing(indexable(X)[0], part.rows.numpy())
        return cross_fit_classifier(self.estimator, some, y, classes, rows.groups, weight, seed)

    @property
    def probability_columns(self) -> list[str]:
        """The names of the columns of probabilities: those of the DataFrame at `fit`, otherwise "p_" and the class."""
        return list(self._column_names or (f"p_{name}" for name in self.classifier_.columns))

    def facts(self) -> dict[str, Any]:
        """Return facts about the classifier by heading, for reports."""
        name = "given probabilities" if self.estimator_ is None else type(self.estimator_).__name__
        facts = {"classifier": name, "classifier sees": self.classifier_sees_}
        if self.joint is not None:
            facts["classifier gives"] = f"P(y, z|x) over {len(self.joint)} values of z"
        return facts | {f"held-out NLL if it sees {sees}": nll for sees, nll in self.held_out_nll_.items()}

    def inputs_of(self, X: Any) -> Tensor:
        """Return the log of the classifier's probabilities for rows X."""
        return self.classifier_.log_proba(self._in_fitted_order(X))

    def _in_fitted_order(self, X: Any) -> Any:
        """Return X; if it is a DataFrame with the column names of `fit`, return its columns in the order of `fit`.

        A DataFrame with other names, which are not the names of the classes either, raises ValueError.
        """
        fitted = self._column_names
        if fitted is None or not isinstance(X, pd.DataFrame):
            return X
        names = column_names(X)
        if names == fitted or sorted(names) == sorted(map(str, self.classes_.tolist())):
            return X
        if sorted(names) != sorted(fitted):
            raise ValueError(
                f"PrevalenceAdjuster: probabilities have the columns {shortened(list(names))}, at fit they had "
                f"{shortened(list(fitted))}: give them the same names, or pass an array in that order"
            )
        return X.iloc[:, [names.index(name) for name in fitted]]

    def calibrated_log_ratio(self, X: Tensor, codes: Tensor) -> Tensor:
        """Return calibrated log f (n, K), computed in chunks of rows."""
        return in_stretches(super().calibrated_log_ratio, X, codes)

    def raw_log_ratio(self, X: Tensor, codes: Tensor) -> Tensor:
        """Return log f before calibration (n, K), from log p."""
        return self.ratio_.log_ratio(X, codes)

    def score_raw(self, X: Tensor, codes: Tensor) -> tuple[Tensor, None, None]:
        """Return log f before calibration, (n, K), and None for features and their row numbers: there are none."""
        return self.raw_log_ratio(X, codes), None, None

    def score_calibrated(self, X: Tensor, codes: Tensor) -> tuple[Tensor, None, None]:
        """Return calibrated log f, (n, K), and None for features and their row numbers: there are none."""
        return self.calibrated_log_ratio(X, codes), None, None

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        if self.estimator is not None and not isinstance(self.estimator, nn.Module):
            tags.input_tags = replace(get_tags(self.estimator).input_tags)
        return tags


def _log_proba_of(classifier: Classifier, X: Any, rows: Tensor) -> Tensor:
    """Return log p of some rows of X; `rows` are their numbers."""
    return classifier.log_proba(_safe_indexing(indexable(X)[0], rows.numpy()))
