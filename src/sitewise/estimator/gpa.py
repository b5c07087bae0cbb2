"""GPAClassifier, algorithm 3 of the paper: train, calibrate, adapt, predict."""

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from sitewise.arrays import Problems, read_groups
from sitewise.estimator.model import SiteModel, unchanged_on_error
from sitewise.estimator.rehearsing import NO_SITES, REHEARSALS, Fold, RemainingSites, rehearse
from sitewise.estimator.scoring.cached import cached_log_ratio, cached_score
from sitewise.estimator.settings import build_network, read_network_settings, train_network
from sitewise.estimator.source.held_out import score_held_out
from sitewise.estimator.source.prevalences import RowPrevalence, by_site, cross_fit
from sitewise.estimator.source.reading import (
    TrainingData,
    read_classes,
    read_domain,
    read_inputs,
    read_training_data,
    split_validation,
)
from sitewise.estimator.without_z.joint import JointModel, calibrate_critic, fit_joint_model
from sitewise.estimator.without_z.predicting import MISSING, judged
from sitewise.inputs import Inputs
from sitewise.ratio import RatioObjective, Scorer, for_network, network_inputs
from sitewise.rows import LabeledRows
from sitewise.solvers import EM
from sitewise.training import Recipe
from sitewise.training.augmentation import AUGMENTATIONS
from sitewise.training.loop import count_parallel, run_side_by_side

EXPECTED_FAILED_CHECKS = {
    "check_sample_weight_equivalence_on_dense_data": (
        "a row of weight two and two rows of weight one are drawn into different mini-batches"
    ),
}
"""The checks of scikit-learn's `check_estimator` that a `GPAClassifier` cannot pass, with the reason."""


FOLD_VALIDATION = 0.2  # share of rows held out in the trainings of a rehearsal, if `validation` names a site


class GPAClassifier(SiteModel):
    """Generalized Prevalence Adjustment (GPA): a classifier that adapts to new sites with unlabeled data.

    At site e, P_e(y|x,z) = softmax(log f(x,z) + log g_e(z)). The network f is the same at all sites, and
    g_e(z) = P_e(y|z) is the prevalence of the site. First the g_e of each training site is fitted to its labels. Then f
    is trained on all sites together, with each g_e held fixed. At a new site, g is estimated from unlabeled rows.

    Parameters
    ----------
    backbone : str or torch module
        The network for x: "auto" (chosen by the shape of X), "mlp", "cnn" (the paper's network for digits),
        "monai:resnet18", "monai:resnet50", "timm:NAME", "torchvision:NAME", or a torch module that returns features.
    prevalence : {"auto", "constant", "table", "additive", "network"}
        The model of g. "constant": one value for all z. "table": one value for each cell (combination of values) of z.
        "additive": a sum of one term for each variable, on the log scale. "network": the paper's network; at a new site
        it is fitted by the paper's EM if `solver` is EM, otherwise by direct maximization of the likelihood. "auto":
        "additive" at the training sites; at a new site as `model="auto"` of `estimate_prevalence`. Without z, g is
        constant.
    knockout : float
        The probability with which each confounder is hidden in training. Confounders may then be missing at prediction.
    missing : {"auto", "knockout", "joint"}
        How rows that lack some or all values of z are predicted. "knockout": f is computed from x and the known values
        of z, as in the paper. "joint": from the site's joint distribution P(z, y), which is estimated from x. "auto":
        "joint" if all of the following conditions hold, otherwise "knockout".

        1. Every row of the site lacks some values of z.
        2. At least 50 training rows have all values of z.
        3. At most 25% of the training rows have a z at which a class is absent. A class is absent at a z in two cases.
           First case: less than one of its rows is expected there by g, but at least 10 by its share of all training
           rows. Second case: z has a category in which the class never occurred, although at least 10 of its rows were
           expected.
        4. On held-out rows whose z is hidden, the log loss of the joint model is at most 1.2 times the log loss of
           knockout, or exceeds this limit by at most two standard errors. With fewer than 50 held-out rows, this
           condition is not checked.
        5. The left-out log-likelihood of the site's x is higher by more than 1 with the joint model than with knockout.
    calibration : {"vector", "bias_corrected", "temperature", "none"}
        The calibration of log f on held-out rows. "vector": a slope and a bias for each class. "bias_corrected": one
        slope, and a bias for each class. "temperature": one slope. "none": log f is not calibrated.
    weights : path, optional
        A local file with weights of the backbone: .safetensors, .pt or .pth. Weights of its classification head are
        not used.
    normalize : {None, "imagenet", "data"}
        How images are normalized. None: bytes are divided by 255. "imagenet": by the mean and standard deviation of
        ImageNet. "data": by the mean and standard deviation of the training images.
    recipe : str or Recipe
        How f is trained: "default", "augmented" (for images), "gpa2024" (the paper's recipe for digits),
        "gpa2024_resnet" (the paper's recipe for ResNets), "gpa2024_release" (the recipe of the paper's published code),
        or a `Recipe`. The documentation of `Recipe` lists the settings that the paper does not state.
    epochs : int, optional
        Replaces the number of epochs of the recipe.
    batch_size : int, optional
        Replaces the batch size of the recipe.
    learning_rate : float, optional
        Replaces the learning rate of the recipe.
    validation : float, str or None
        The rows that are held out to choose the best epoch and to calibrate f. A number: this share of the rows of each
        class at each site; if `fit` gets groups, this share of the groups of each site. A name: all rows of the site
        with this name. None: no rows are held out.
    device : {"auto", "cpu", "cuda", "mps"}
        The device; "auto" uses a GPU if there is one.
    devices : int or "auto"
        The number of devices that train f together; "auto": all. The result is the same as with one device, up to
        rounding. Several devices need `sitewise[gpu]`.
    nodes : int
        The number of machines. Use torchrun to start training on several machines.
    strategy : {"auto", "ddp", "ddp_spawn"}
        "ddp": use the processes that torchrun started. "ddp_spawn": start new processes. "auto": "ddp" if torchrun
        started this process, otherwise "ddp_spawn".
    checkpoint : path, optional
        A file or folder in which training is saved after each epoch. If `fit` was interrupted, call it again with the
        same data and settings to continue from there. `fit` removes the saved files when it ends.
    cache : path, optional
        A folder in which computed values of log f are kept. If the same network has already scored the same rows, even
        in another process, the values are read from this folder.
    verbose : bool, optional
        Whether to show the progress bar. None: only on a terminal.
    random_state : int, RandomState or None
        Seed. Repeated runs on a CPU give identical results.
    rehearsal : {"auto", "sites", "rows", None}
        How `fit` rehearses the adaptation to a new site. "sites": each training site is left out in turn. A model is
        trained on the other sites, adapted to the left-out site without its labels, and evaluated with its labels.
        "rows": the model is adapted to its held-out rows as if they came from a new site; no model is trained again.
        "auto": "sites" if there are several sites, otherwise "rows". None: no rehearsal.
    balance : bool or "auto"
        Whether f is balanced on held-out rows before it is calibrated: its mean at each z is made the same for all
        classes (equation 18a). "auto": f is balanced if `calibration` is not "none". The paper does not balance f.
    solver : str or EM
        The solver of g at a new site, as for `estimate_prevalence`. `EM(iterations=5)` is the paper's solver. With EM,
        the estimate of g is not a posterior, so the numbers that the rehearsal learned do not enter it.
    prevalence_dropout : float
        Only for `prevalence="network"`: the dropout probability of hidden units while g is fitted to labels or by EM.
        The paper uses 0.5 for ISIC and CXR, and no dropout for digits.

    Attributes
    ----------
    classes_ : ndarray of shape (K,)
        The classes, in order.
    sites_ : list
        The names of the training sites.
    confounders_ : Confounders or None
        The schema of z, learned by `fit`; None if trained without z.
    training_history_ : list of dict
        Training and validation loss of each epoch.
    training_summary_ : TrainingSummary
        The number of rows of each class at each training site, and a hash that identifies the data.
    rehearsal_ : Rehearsal
        The result of the rehearsal, see the parameter `rehearsal`.

    Examples
    --------
    >>> model = GPAClassifier().fit(X, y, sample_domain=hospital, sample_confounder=Z)
    >>> here = model.adapt(X_new, sample_confounder=Z_new)
    >>> here.prevalence(), here.predict_proba(X_new, sample_confounder=Z_new)
    """

    n_features_in_: int
    input_shape_: tuple[int, ...] | None
    training_history_: list[dict[str, Any]]
    best_epoch_: int
    joint_: JointModel | None = None

    def __init__(
        self,
        backbone: str | nn.Module = "auto",
        prevalence: str = "auto",
        knockout: float = 0.5,
        missing: str = "auto",
        calibration: str = "vector",
        *,
        weights: str | os.PathLike[str] | None = None,
        normalize: str | None = None,
        recipe: str | Recipe = "default",
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        validation: float | str | None = 0.2,
        device: str = "auto",
        devices: int | str = 1,
        nodes: int = 1,
        strategy: str = "auto",
        checkpoint: str | os.PathLike[str] | None = None,
        cache: str | os.PathLike[str] | None = None,
        verbose: bool | None = None,
        random_state: Any = 0,
        rehearsal: str | None = "auto",
        balance: bool | str = "auto",
        solver: str | EM = "auto",
        prevalence_dropout: float = 0.0,
    ) -> None:
        self.backbone = backbone
        self.prevalence = prevalence
        self.knockout = knockout
        self.missing = missing
        self.calibration = calibration
        self.weights = weights
        self.normalize = normalize
        self.recipe = recipe
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.validation = validation
        self.device = device
        self.devices = devices
        self.nodes = nodes
        self.strategy = strategy
        self.checkpoint = checkpoint
        self.cache = cache
        self.verbose = verbose
        self.random_state = random_state
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
        """Fit the g of each site, train f on all sites, calibrate f on held-out rows, and rehearse adaptation.

        Parameters
        ----------
        X : array-like of shape (n, d), (n, H, W) or (n, C, H, W)
            A table, or images as uint8 or floats.
        y : array-like of shape (n,)
            Labels.
        sample_domain : array-like of shape (n,), optional
            The site of each row. None: all rows belong to one site.
        sample_confounder : DataFrame or array-like of shape (n, V), optional
            The confounders z, NaN where missing.
        groups : array-like of shape (n,), optional
            The patient (or other group) of each row. Checks count patients instead of rows. If `validation` is a share,
            the rows of a patient are either all used for training or all held out.
        sample_weight : array-like of shape (n,), optional
            Weights of the rows.

        Returns
        -------
        GPAClassifier
            Itself, fitted.
        """
        with unchanged_on_error(self):
            recipe = self._check_settings()
            inputs = read_inputs(self, X, reset=True)
            data = read_training_data(inputs, y, sample_domain, sample_confounder, groups, sample_weight)
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            if self.rehearsal == "sites" and len(data.site_names) < 2:
                raise ValueError("GPAClassifier: " + NO_SITES.format(count=len(data.site_names)))
            checkpoints = self._learn(data, recipe, seed)

            def fit_folds(parts: list[RemainingSites]) -> Iterator[Fold]:
                for fold, left in self._learn_folds(parts, recipe, seed):
                    checkpoints.extend(left)
                    yield Fold(fold, lambda rows: data.rows.take(rows).X)

            self.rehearsal_ = rehearse(self, data, fit_folds)
            self.prior_ = self.rehearsal_.numbers.put_into(self.prior_)
            for path in checkpoints:
                path.unlink(missing_ok=True)
        return self

    def _check_settings(self) -> Recipe:
        problems = Problems("GPAClassifier")
        recipe = read_network_settings(self, problems)
        if self.cache is not None and (not isinstance(self.cache, str | os.PathLike) or os.path.isfile(self.cache)):
            problems.add(f"cache must be the path of a folder, got {self.cache!r}")
        self._check_prevalence(problems)
        if not 0 <= self.knockout < 1:
            problems.add(f"knockout must be a probability below one, got {self.knockout!r}")
        if self.rehearsal not in REHEARSALS:
            known = ", ".join(str(option) for option in REHEARSALS)
            problems.add(f"rehearsal must be one of {known}, got {self.rehearsal!r}")
        if self.missing not in MISSING:
            problems.add(f"missing must be one of {', '.join(MISSING)}, got {self.missing!r}")
        self._check_scaling(problems)
        problems.raise_if_any()
        return recipe

    def _learn(self, data: TrainingData, recipe: Recipe, seed: int, label: str = "training f") -> list[Path]:
        """Do all steps of `fit` except the rehearsal; return the checkpoint files that `fit` removes at its end."""
        kept, held = split_validation(data, self.validation, seed)
        training, validation = data.rows.take(kept), data.rows.take(held)

        # Algorithm 3 of the paper, step 1: g of every site from its (y, z) (equation 2).
        self._learn_sites(data, training, seed)
        validation_prevalence = self._validation_prevalence(validation, seed)

        # Step 2: f, given these g (equations 3 to 5).
        objective = self._objective(training, validation, validation_prevalence, recipe)
        module = build_network(self, training.X, data.schema, len(data.classes), seed)
        kept_at = {"checkpoint": _checkpoint_of(self.checkpoint, label), "keep_checkpoint": True}
        trained = train_network(self, module, objective, recipe, seed, label, **kept_at)
        self.scorer_ = Scorer(trained.module, self.device)
        self.training_history_, self.best_epoch_ = trained.history, trained.best_epoch

        # Step 3: f calibrated on the held-out rows (equations 6 and 18a).
        held_out = score_held_out(validation, validation_prevalence, self.confounders_, self.score_raw)
        self._balance_and_calibrate(held_out)

        # Not in the paper: the joint model for rows that lack z (section 15).
        learns = self.missing != "knockout" and self.confounders_ is not None
        self.joint_ = fit_joint_model(self, training, validation, seed) if learns else None
        self.joint_ = judged(self, validation)
        return [] if trained.checkpoint is None else [trained.checkpoint]

    def _validation_prevalence(self, validation: LabeledRows, seed: int) -> RowPrevalence:
        """Return g of the held-out rows, by models that were not fitted to their labels."""
        models = {s: self.site_prevalences_[n] for s, n in enumerate(self.sites_) if n in self.site_prevalences_}
        if all(s in models for s in torch.unique(validation.site).tolist()):
            return by_site(validation.site, models)
        return cross_fit(self.fit_prevalence, validation, seed)

    def _objective(
        self, training: LabeledRows, validation: LabeledRows, prevalence: RowPrevalence, recipe: Recipe
    ) -> RatioObjective:
        number_of = {s: i for i, s in enumerate(torch.unique(training.site).tolist())}
        sites = torch.tensor([number_of[s] for s in training.site.tolist()], dtype=torch.int64)
        rows = replace(training, X=for_network(training.X), site=sites)
        held = replace(validation, X=for_network(validation.X))
        if recipe.balance_validation:
            held = held.balanced()
        log_prevalence = prevalence.log_prob(validation.codes) if len(validation) else None
        augment = AUGMENTATIONS[recipe.augment] if recipe.augment else None
        models = list(self.site_prevalences_.values())
        return RatioObjective(rows, held, self.confounders_, models, log_prevalence, self.knockout, augment)

    def _learn_folds(
        self, parts: list[RemainingSites], recipe: Recipe, seed: int
    ) -> Iterator[tuple["GPAClassifier", list[Path]]]:
        """Train a model for each rehearsal, without some sites; several at a time if the GPU memory allows it."""
        in_memory = all(isinstance(part.data.rows.X, Tensor) for part in parts)
        n_parallel = count_parallel(len(parts), self.device, self.devices, self.nodes) if in_memory else 1
        verbose = self.verbose if n_parallel == 1 else False
        tasks = [
            (self._fold(verbose), part.data, recipe, seed, f"rehearsal {number} of {len(parts)}, without {part.name}")
            for number, part in enumerate(parts, start=1)
        ]
        return run_side_by_side(_learn_fold, tasks, n_parallel, f"{len(parts)} rehearsals", self.verbose)

    def _fold(self, verbose: bool | None) -> "GPAClassifier":
        """Return an unfitted model with the same settings for a rehearsal; it predicts rows that lack z by knockout."""
        changes: dict[str, Any] = {"missing": "knockout", "rehearsal": None, "verbose": verbose}
        if isinstance(self.validation, str):  # the site that it names may be left out
            changes["validation"] = FOLD_VALIDATION
        return GPAClassifier(**{**self.get_params(deep=False), **changes})

    def calibrate(
        self, X: Any, y: Any, sample_domain: Any = None, sample_confounder: Any = None, groups: Any = None
    ) -> Self:
        """Calibrate f again on labeled rows that were not used in training. The network and g are not changed.

        These rows take the place of the held-out rows, also in checks, plans and prediction sets.

        Parameters
        ----------
        X : array-like of shape (n, d), (n, H, W) or (n, C, H, W)
            Labeled rows.
        y : array-like of shape (n,)
            Labels.
        sample_domain : array-like of shape (n,), optional
            The site of each row, which need not be a training site. None: all rows belong to one site.
        sample_confounder : DataFrame or array-like of shape (n, V), optional
            The confounders z, NaN where missing.
        groups : array-like of shape (n,), optional
            The patient (or other group) of each row.

        Returns
        -------
        GPAClassifier
            Itself, with the new calibration.
        """
        check_is_fitted(self)
        inputs = read_inputs(self, X, reset=False)
        problems = Problems("calibrate")
        labels, target = read_classes(y, problems)
        unknown = sorted(set(labels.tolist()) - set(self.classes_.tolist()), key=str)
        if unknown:
            problems.add(f"y holds {unknown}, which are not among the classes {self.classes_.tolist()}")
        if len(target) != len(inputs):
            problems.add(f"y has {len(target)} row(s), X has {len(inputs)}")
        _, site = read_domain(sample_domain, len(inputs), problems)
        group = read_groups(groups, len(inputs), problems)
        problems.raise_if_any()
        number_of = torch.tensor(np.searchsorted(self.classes_, labels))
        weight = torch.ones(len(inputs))
        codes = self.codes_of(sample_confounder, len(inputs))
        numbers = number_of[torch.tensor(target)]
        rows = LabeledRows(X=inputs, y=numbers, weight=weight, site=site, codes=codes, groups=group)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        own = cross_fit(self.fit_prevalence, rows, seed)
        self._balance_and_calibrate(score_held_out(rows, own, self.confounders_, self.score_raw))
        self._keep_rehearsed()
        self.joint_ = None if self.joint_ is None else calibrate_critic(self, self.joint_, rows, seed)
        self.joint_ = judged(self, rows)
        return self

    def facts(self) -> dict[str, Any]:
        """Return facts about the network and its training by heading, for reports."""
        return {
            "network": self.backbone if isinstance(self.backbone, str) else type(self.backbone).__name__,
            "knockout": float(self.knockout),
            "recipe": self.recipe if isinstance(self.recipe, str) else "its own",
            "epochs, of which kept": f"{len(self.training_history_)}, {self.best_epoch_ + 1}",
        }

    def inputs_of(self, X: Any) -> Inputs:
        """Check X, which has the format of `fit`, and return it in the form that `raw_log_ratio` reads."""
        return read_inputs(self, X, reset=False)

    def raw_log_ratio(self, X: Inputs, codes: Tensor) -> Tensor:
        """Return log f before calibration, (n, K)."""
        return cached_log_ratio(self.cache, self.scorer_, X, network_inputs(self.confounders_, codes))

    def score_raw(self, X: Inputs, codes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log f before calibration (n, K), features of m rows (m, D), and the indices of these rows (m,)."""
        z = network_inputs(self.confounders_, codes)
        return cached_score(self.cache, self.scorer_, X, z, len(self.classes_))


def _learn_fold(
    fold: GPAClassifier, data: TrainingData, recipe: Recipe, seed: int, label: str
) -> tuple[GPAClassifier, list[Path]]:
    return fold, fold._learn(data, recipe, seed, label)


def _checkpoint_of(where: str | os.PathLike[str] | None, label: str) -> str | os.PathLike[str] | None:
    """Return the path of a training's checkpoint: `where`. If `where` is a file, a rehearsal gets a file next to it."""
    if where is None or label == "training f" or not Path(where).suffix or Path(where).is_dir():
        return where
    name = re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")
    return Path(where).with_name(f"{Path(where).stem}-{name}{Path(where).suffix}")
