"""GPAClassifier: the paper's algorithm 3, train, calibrate, adapt, predict."""

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
from sitewise.estimator.model import SiteModel
from sitewise.estimator.rehearsing import NO_SITES, REHEARSALS, Fold, Part, rehearse
from sitewise.estimator.scoring.cached import cached_log_ratio, cached_score
from sitewise.estimator.settings import read_network_settings
from sitewise.estimator.source.held_out import score_held_out
from sitewise.estimator.source.prevalences import RowPrevalence, by_site
from sitewise.estimator.source.reading import (
    TrainingData,
    read_classes,
    read_domain,
    read_inputs,
    read_training_data,
)
from sitewise.estimator.source.splitting import split_validation
from sitewise.estimator.without_z.choosing import MISSING, judged
from sitewise.estimator.without_z.joint import JointModel, calibrate_critic, fit_joint_model
from sitewise.inputs import Inputs
from sitewise.ratio import RatioObjective, Scorer, build_ratio, for_network, network_inputs
from sitewise.rows import LabeledRows
from sitewise.solvers import EM
from sitewise.training import AUGMENTATIONS, Recipe, train
from sitewise.training.side_by_side import count_rooms, run_side_by_side

EXPECTED_FAILED_CHECKS = {
    "check_sample_weight_equivalence_on_dense_data": (
        "a row of weight two and two rows of weight one are drawn into different mini-batches"
    ),
}


FOLD_VALIDATION = 0.2  # the share held out in a rehearsal's training, where a whole site is otherwise


class GPAClassifier(SiteModel):
    """Generalized Prevalence Adjustment: a classifier that adapts to new sites with unlabeled data.

    P_e(y|x,z) = softmax(log f(x,z) + log g_e(z)) at site e, where f is a network trained on all sites with their g_e
    given, and g_e(z) = P_e(y|z) is fitted to the site's labels, or at a new site estimated from unlabeled rows.

    Parameters
    ----------
    backbone : "auto" (by the shape of X), "mlp", "cnn" (the paper's for digits), "monai:resnet18", "monai:resnet50",
        "timm:NAME", "torchvision:NAME", or a torch module that gives features.
    prevalence : the model of g: "auto", "constant", "table", "additive" or "network" (the paper's network; at a new
        site by its EM where `solver` says so, else by a climb of the likelihood).
    knockout : the probability with which each confounder is hidden in training, so that it may be missing later.
    missing : how rows that lack z are predicted: "knockout" (the paper's way), "joint" (exactly, from an estimate of
        the site's joint of z and y), or "auto" (knockout; the joint model where no row of a site has all
        of z and left-out likelihood speaks for it).
    calibration : of log f on held-out rows: "vector", "bias_corrected", "temperature" or "none".
    balance : whether f is first balanced on held-out rows, its mean at each z made the same for all classes (equation
        18a): True, False, or "auto" (where it is calibrated). The paper does not.
    solver : of a new site's g, as for `estimate_prevalence`. `EM(iterations=5)` is the paper's; EM takes no prior, and
        what the rehearsal learned of one is then not used.
    prevalence_dropout : the share of hidden units dropped while the network g is fitted (the paper: 0.5 for its two
        image collections).
    weights : a local file with weights for the backbone, .safetensors, .pt or .pth; its classifier is left out.
    normalize : of images: None (bytes / 255), "imagenet", or "data" (by mean and spread of the training images).
    recipe : how f is trained: "default", "augmented" (images), "gpa2024", "gpa2024_resnet" (the paper's; see `Recipe`
        for what it leaves open), "gpa2024_release" (its published code's) or a `Recipe`.
    epochs, batch_size, learning_rate : changes to the recipe.
    validation : the share of each site held out for the choice of the snapshot and for calibration (groups kept
        whole), the name of a site held out for it, or None.
    device : "auto" (a GPU where there is one), "cpu", "cuda" or "mps".
    devices, nodes : how many of them train f together ("auto": all), on how many machines; the result is that of one to
        rounding. They need `sitewise[gpu]`. Several machines are started by torchrun.
    strategy : "auto" (the processes of torchrun where it started us, otherwise new ones), "ddp" or "ddp_spawn": only
        the one or the other.
    checkpoint : a file, or a folder, in which training is saved after every epoch: a fit that was killed goes on from
        there when it is called again with the same data and settings. It is removed when training ends.
    cache : a folder in which log f is kept by the content of the network and of the rows: every adaptation, prediction
        or calibration on rows that were scored before, also by another process, leaves the network alone.
    verbose : True or False for the progress bar; None shows it on a terminal.
    random_state : seed; a CPU run repeats to the bit.

    Attributes
    ----------
    classes_ : the classes, in order.
    sites_ : the names of the training sites.
    confounders_ : the frozen schema of z, None if trained without.
    training_history_ : loss and validation loss of every epoch.
    training_summary_ : rows and classes of every training site, and a fingerprint of the data.

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
        """Train f on all sites with each site's g given, then calibrate it on held-out rows.

        `sample_domain` names the site of each row (None: one site), `sample_confounder` is Z with NaN where missing,
        `groups` (patients) are never split between training and validation; where sites are diagnosed, patients count.
        """
        before = dict(vars(self))
        try:
            self._fit(X, y, sample_domain, sample_confounder, groups, sample_weight)
        except BaseException:  # leave nothing half-fitted, whatever went wrong
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
        return self

    def _fit(self, X: Any, y: Any, domain: Any, Z: Any, groups: Any, weight: Any) -> None:
        recipe = self._check_settings()
        inputs = read_inputs(self, X, reset=True)
        data = read_training_data(inputs, y, domain, Z, groups, weight)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        if self.rehearsal == "sites" and len(data.site_names) < 2:
            raise ValueError("GPAClassifier: " + NO_SITES.format(count=len(data.site_names)))
        checkpoints = self._learn(data, recipe, seed)

        def fit_folds(parts: list[Part]) -> Iterator[Fold]:
            for fold, left in self._learn_folds(parts, recipe, seed):
                checkpoints.extend(left)
                yield Fold(fold, lambda rows: data.rows.take(rows).X)

        self.rehearsal_ = rehearse(self, data, fit_folds)
        self.prior_ = self.rehearsal_.numbers.put_into(self.prior_)
        for path in checkpoints:
            path.unlink(missing_ok=True)

    def _learn_folds(
        self, parts: list[Part], recipe: Recipe, seed: int
    ) -> Iterator[tuple["GPAClassifier", list[Path]]]:
        """Models without some sites each, at the same time where a GPU has room for them."""
        in_memory = all(isinstance(part.data.rows.X, Tensor) for part in parts)
        n_rooms = count_rooms(len(parts), self.device, self.devices, self.nodes) if in_memory else 1
        verbose = self.verbose if n_rooms == 1 else False
        tasks = [
            (self._fold(verbose), part.data, recipe, seed, f"rehearsal {number} of {len(parts)}, without {part.name}")
            for number, part in enumerate(parts, start=1)
        ]
        return run_side_by_side(_learn_fold, tasks, n_rooms, f"{len(parts)} rehearsals", self.verbose)

    def _fold(self, verbose: bool | None) -> "GPAClassifier":
        """A model like this one, to be trained without some sites: z that is missing stays knocked out."""
        changes: dict[str, Any] = {"missing": "knockout", "rehearsal": None, "verbose": verbose}
        if isinstance(self.validation, str):  # that site may be the one left out
            changes["validation"] = FOLD_VALIDATION
        return GPAClassifier(**{**self.get_params(deep=False), **changes})

    def _learn(self, data: TrainingData, recipe: Recipe, seed: int, label: str = "training f") -> list[Path]:
        """Everything but the rehearsal, from checked rows; the checkpoint that is left, if any, to be removed."""
        kept, held = split_validation(data, self.validation, seed)
        training, validation = data.rows.take(kept), data.rows.take(held)
        self._learn_sites(data, training, seed)
        validation_prevalence = self._validation_prevalence(validation, seed)
        objective = self._objective(training, validation, validation_prevalence, recipe)
        module = build_ratio(
            self.backbone,
            training.X,
            data.schema,
            len(data.classes),
            seed,
            weights=self.weights,
            normalize=self.normalize,
        )
        trained = train(
            module,
            objective,
            recipe,
            device=self.device,
            devices=self.devices,
            nodes=self.nodes,
            strategy=self.strategy,
            seed=seed,
            verbose=self.verbose,
            label=label,
            checkpoint=_checkpoint_of(self.checkpoint, label),
            keep_checkpoint=True,
        )
        self.scorer_ = Scorer(trained.module, self.device)
        self.training_history_, self.best_epoch_ = trained.history, trained.best_epoch
        self._hold_out(score_held_out(validation, validation_prevalence, self.confounders_, self.score_raw))
        learns = self.missing != "knockout" and self.confounders_ is not None
        self.joint_ = fit_joint_model(self, training, validation, seed) if learns else None
        self.joint_ = judged(self, validation)
        return [] if trained.checkpoint is None else [trained.checkpoint]

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

    def _validation_prevalence(self, validation: LabeledRows, seed: int) -> RowPrevalence:
        """g for the held-out rows by models that saw none of their labels."""
        models = {s: self.site_prevalences_[n] for s, n in enumerate(self.sites_) if n in self.site_prevalences_}
        if all(s in models for s in torch.unique(validation.site).tolist()):
            return by_site(validation.site, models)
        return self._cross_fit(validation, seed)

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

    def calibrate(
        self, X: Any, y: Any, sample_domain: Any = None, sample_confounder: Any = None, groups: Any = None
    ) -> Self:
        """Replace the calibration by one fitted on labeled rows of a site of its own; f and g stay as they are."""
        check_is_fitted(self)
        inputs = read_inputs(self, X, reset=False)
        problems = Problems("calibrate")
        labels, target = read_classes(y, problems)
        unknown = sorted(set(labels.tolist()) - set(self.classes_.tolist()), key=str)
        if unknown:
            problems.add(f"y holds {unknown}, which are not among the classes {self.classes_.tolist()}")
        _, site = read_domain(sample_domain, len(inputs), problems)
        group = read_groups(groups, len(inputs), problems)
        problems.raise_if_any()
        number_of = torch.tensor(np.searchsorted(self.classes_, labels))
        weight = torch.ones(len(inputs))
        codes = self.codes_of(sample_confounder, len(inputs))
        numbers = number_of[torch.tensor(target)]
        rows = LabeledRows(X=inputs, y=numbers, weight=weight, site=site, codes=codes, groups=group)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self._hold_out(score_held_out(rows, self._cross_fit(rows, seed), self.confounders_, self.score_raw))
        self.joint_ = None if self.joint_ is None else calibrate_critic(self, self.joint_, rows, seed)
        self.joint_ = judged(self, rows)
        return self

    def facts(self) -> dict[str, Any]:
        """The network and its training."""
        return {
            "network": self.backbone if isinstance(self.backbone, str) else type(self.backbone).__name__,
            "knockout": float(self.knockout),
            "recipe": self.recipe if isinstance(self.recipe, str) else "its own",
            "epochs, of which kept": f"{len(self.training_history_)}, {self.best_epoch_ + 1}",
        }

    def inputs_of(self, X: Any) -> Inputs:
        """X as at fit, checked."""
        return read_inputs(self, X, reset=False)

    def raw_log_ratio(self, X: Inputs, codes: Tensor) -> Tensor:
        """log f before calibration."""
        return cached_log_ratio(self.cache, self.scorer_, X, network_inputs(self.confounders_, codes))

    def score_raw(self, X: Inputs, codes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """log f before calibration, and the features of some of the rows."""
        z = network_inputs(self.confounders_, codes)
        return cached_score(self.cache, self.scorer_, X, z, len(self.classes_))


def _learn_fold(
    fold: GPAClassifier, data: TrainingData, recipe: Recipe, seed: int, label: str
) -> tuple[GPAClassifier, list[Path]]:
    return fold, fold._learn(data, recipe, seed, label)


def _checkpoint_of(where: str | os.PathLike[str] | None, label: str) -> str | os.PathLike[str] | None:
    """Where a training is saved: a folder gives each a name of its own, beside a file the rehearsals have theirs."""
    if where is None or label == "training f" or not Path(where).suffix or Path(where).is_dir():
        return where
    name = re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")
    return Path(where).with_name(f"{Path(where).stem}-{name}{Path(where).suffix}")
