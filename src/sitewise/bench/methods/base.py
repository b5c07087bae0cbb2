"""The interface of all methods: `fit`, `adapt` and `predict_proba`. Several methods may share a trained network."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from sitewise.arrays import Problems
from sitewise.bench.methods.card import Card, refuse
from sitewise.bench.methods.network import Array, Trained, train_method
from sitewise.bench.methods.objective import Batch, Prepared, mean_nll
from sitewise.confounders import Confounders
from sitewise.estimator.settings import read_network_settings
from sitewise.estimator.source.reading import read_inputs
from sitewise.inputs import Inputs
from sitewise.ratio import RatioNetwork, Scorer, network_inputs
from sitewise.rows import LabeledRows
from sitewise.training import Recipe

Rule = Callable[[Any, Any], Tensor]  # X, Z -> log P(y|x,z), (n, K)
SILENT = ("verbose", "checkpoint", "devices", "nodes", "strategy")  # settings that change nothing about the network


@dataclass(frozen=True)
class AdaptedMethod:
    """A method adapted to one site; `Method.adapt` returns it.

    Parameters
    ----------
    classes_ : ndarray of shape (K,)
        The classes, in the order of the columns of predicted probabilities.
    rule : callable
        `rule(X, Z)` returns the predictions log P(y|x,z) of any rows, (n, K).
    own_rule : callable
        `own_rule()` returns the predictions log P(y|x,z) of the rows that were passed to `Method.adapt`, (n, K). If the
        method fits g to the labels of these rows, each row is predicted with a g that was fitted without its label.
    marginal : ndarray of shape (K,), optional
        The estimate of the site's P(Y); None if the method does not estimate it.
    """

    classes_: Array
    rule: Rule = field(repr=False)
    own_rule: Callable[[], Tensor] = field(repr=False)
    marginal: Array | None = None

    def predict_proba(self, X: Any, sample_confounder: Any = None) -> Array:
        """Predict the probabilities of the classes at this site, P(y|x,z) or P(y|x).

        Parameters
        ----------
        X : array-like
            Inputs of the rows, in the same form as for `Method.fit`.
        sample_confounder : DataFrame or array-like of shape (n, V), optional
            The confounders z of the rows.

        Returns
        -------
        ndarray of shape (n, K)
            Probabilities.
        """
        return np.asarray(self.rule(X, sample_confounder).exp().numpy())

    def predict(self, X: Any, sample_confounder: Any = None) -> Array:
        """Predict the most probable class of each row at this site.

        Parameters
        ----------
        X : array-like
            Inputs of the rows, in the same form as for `Method.fit`.
        sample_confounder : DataFrame or array-like of shape (n, V), optional
            The confounders z of the rows.

        Returns
        -------
        ndarray of shape (n,)
            Classes.
        """
        return np.asarray(self.classes_[self.predict_proba(X, sample_confounder).argmax(axis=1)])

    def own_proba(self) -> Array:
        """Predict the rows that were passed to `Method.adapt`.

        If the method fits g to the labels of these rows, each row is predicted with a g that was fitted without its
        label.

        Returns
        -------
        ndarray of shape (n, K)
            Probabilities.
        """
        return np.asarray(self.own_rule().exp().numpy())

    def prevalence(self) -> Array | None:
        """Return the estimate of P(Y) at this site.

        Returns
        -------
        ndarray of shape (K,) or None
            The estimate; None if the method does not estimate P(Y).
        """
        return self.marginal


@dataclass(kw_only=True, eq=False, repr=False)
class Method(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Base class of the compared methods. A subclass sets its `card` and overrides some of the hooks.

    The hooks are `trainer`, `prepare`, `n_outputs`, `build`, `loss`, `validation_loss`, `begin_epoch`, `see`, `settle`,
    `log_proba`, `rule_at` and `own_log_proba`; only `loss` has no default. A method that trains a network of its own
    overrides `loss`. A method that adjusts the outputs of another method's network to a site overrides `rule_at`, and
    `trainer`, which returns this other method.

    In the formulas of all methods, b is the new site, s stands for all training sites together, and Norm scales
    non-negative numbers so that they sum to one over y. K is the number of classes, and the *features* are the inputs
    of the last layer of the network. The parameters of this class are explained in more detail at `GPAClassifier`.

    Parameters
    ----------
    backbone : str, module or callable
        The network that reads x: "auto", a name, or your own module.
    weights : path, optional
        A file with pretrained weights of the backbone.
    normalize : str, optional
        How pixels are normalized: "imagenet" or "data". None: bytes are only divided by 255.
    recipe : str or Recipe
        How the network is trained: the name of a recipe, or a `Recipe`.
    epochs : int, optional
        The number of passes over the training rows. If it is given, `min_steps` of the recipe is ignored. None: the
        recipe decides.
    batch_size : int, optional
        The number of rows of a batch; None means the value of the recipe.
    learning_rate : float, optional
        The highest learning rate; None means the value of the recipe.
    validation : float, str or None
        The rows that are held out from training, to choose the best epoch and, in methods that calibrate, to calibrate.
        A number: this share of each site's rows. A name: all rows of the site with this name. None: no rows.
    device : str
        "auto", "cpu", "cuda" or another device of torch.
    devices : int or str
        The number of devices that train one network together.
    nodes : int
        The number of machines that train one network together.
    strategy : str
        How several training processes are started: "auto", "ddp" or "ddp_spawn".
    checkpoint : path, optional
        A file or folder in which training is saved after each epoch, and from which it is resumed if it was
        interrupted.
    verbose : bool, optional
        Whether to show progress; None shows it in a terminal.
    random_state : int, RandomState or None
        The seed of the training.

    Attributes
    ----------
    card : Card
        What the method assumes and needs; set by each subclass.
    reads_z : bool
        Whether the network gets z as an input in addition to x.
    packages : tuple of str
        Packages that the method imports in addition to the dependencies of sitewise.

    Examples
    --------
    >>> method = METHODS["label_shift_em"](epochs=5).fit(X, y, sample_domain=site)
    >>> method.adapt(X_new).predict_proba(X_new)
    """

    backbone: Any = "auto"
    weights: str | os.PathLike[str] | None = None
    normalize: str | None = None
    recipe: str | Recipe = "default"
    epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    validation: float | str | None = 0.2
    device: str = "auto"
    devices: int | str = 1
    nodes: int = 1
    strategy: str = "auto"
    checkpoint: str | os.PathLike[str] | None = None
    verbose: bool | None = None
    random_state: Any = 0

    card: ClassVar[Card]
    reads_z: ClassVar[bool] = False
    packages: ClassVar[tuple[str, ...]] = ()

    # Public methods.

    def fit(
        self,
        X: Any,
        y: Any,
        sample_domain: Any = None,
        sample_confounder: Any = None,
        groups: Any = None,
        sample_weight: Any = None,
        unlabeled: Mapping[str, Any] | None = None,
    ) -> Self:
        """Train on labeled rows of one or more sites.

        Parameters
        ----------
        X : array-like
            Inputs of the rows.
        y : array-like of shape (n,)
            Labels of the rows.
        sample_domain : array-like of shape (n,), optional
            The site of each row. If None, all rows belong to one site.
        sample_confounder : DataFrame or array-like of shape (n, V), optional
            The confounders z of the rows.
        groups : array-like of shape (n,), optional
            The group of each row, for example its patient. A group is never split between training and held-out rows.
        sample_weight : array-like of shape (n,), optional
            Weights of the rows.
        unlabeled : dict of str to array-like, optional
            Inputs of the unlabeled rows of each further site, by the name of the site. Only methods with
            `card.unlabeled_in_training` use them.

        Returns
        -------
        Method
            The method itself, fitted.
        """
        return self.attach(
            self.trainer().train(X, y, sample_domain, sample_confounder, groups, sample_weight, unlabeled)
        )

    def adapt(self, X: Any, sample_confounder: Any = None, y: Any = None, prevalence: Any = None) -> AdaptedMethod:
        """Adapt to a new site with rows of this site.

        Most methods need X only, or X and z. Those that need more are references in comparisons, and
        `card.labels_at_test` says what they need.

        Parameters
        ----------
        X : array-like
            Inputs of the rows of the site.
        sample_confounder : DataFrame or array-like of shape (n, V), optional
            The confounders z of the rows.
        y : array-like of shape (n,), optional
            Labels of the rows, if `card.labels_at_test` is "labels".
        prevalence : array-like or callable, optional
            If `card.labels_at_test` is "P(Y)": the true P(Y), as K numbers (if it is left out, P(Y) is computed from
            `y`). If it is "true g": a function from Z to the true P(y|z), (n, K).

        Returns
        -------
        AdaptedMethod
            The method at this site.
        """
        check_is_fitted(self, "trained_")
        rule, marginal = self.rule_at(X, sample_confounder, y, prevalence)
        return AdaptedMethod(
            self.classes_,
            rule,
            lambda: self.own_log_proba(rule, X, sample_confounder, y),
            None if marginal is None else np.asarray(marginal),
        )

    def adapt_predict_proba(
        self, X: Any, sample_confounder: Any = None, y: Any = None, prevalence: Any = None
    ) -> Array:
        """Adapt to the rows of a site, and return the predicted probabilities of the same rows, (n, K).

        The arguments are those of `adapt`, and the result is that of `AdaptedMethod.own_proba`.
        """
        return self.adapt(X, sample_confounder, y, prevalence).own_proba()

    def predict_proba(self, X: Any, sample_confounder: Any = None) -> Array:
        """Predict probabilities as trained, without adaptation.

        Parameters
        ----------
        X : array-like
            Inputs of the rows, in the same form as for `fit`.
        sample_confounder : DataFrame or array-like of shape (n, V), optional
            The confounders z of the rows.

        Returns
        -------
        ndarray of shape (n, K)
            Probabilities.
        """
        check_is_fitted(self, "trained_")
        return np.asarray(self.log_proba(X, sample_confounder).exp().numpy())

    def predict(self, X: Any, sample_confounder: Any = None) -> Array:
        """Predict the most probable class of each row as trained, without adaptation.

        Parameters
        ----------
        X : array-like
            Inputs of the rows, in the same form as for `fit`.
        sample_confounder : DataFrame or array-like of shape (n, V), optional
            The confounders z of the rows.

        Returns
        -------
        ndarray of shape (n,)
            Classes.
        """
        return np.asarray(self.classes_[self.predict_proba(X, sample_confounder).argmax(axis=1)])

    def refusal(self, n_sites: int, confounders: Confounders | None, n_unlabeled: int) -> str | None:
        """Return the reason why this method cannot be trained on some data; None if it can.

        The data are described by the number of training sites, the confounders (None if there is no z) and the number
        of unlabeled rows.
        """
        return refuse(self.card, n_sites, confounders)

    # Hooks: subclasses override them.

    def trainer(self) -> "Method":
        """Return the method that trains the network which this method uses; by default this method itself."""
        return self

    def prepare(self, training: LabeledRows, held: LabeledRows, schema: Confounders | None, n: int) -> Prepared:
        """Compute, before training, the values that `loss` needs in addition to the rows; by default there are none.

        `training` and `held` are the training rows and the held-out rows, `schema` is the schema of z, and n is the
        number of classes. The result has `columns`, with an entry for each training row, and `memory` for all other
        values.
        """
        return Prepared()

    def n_outputs(self, n_classes: int, prepared: Prepared) -> int:
        """Return the number of outputs of the network; by default one for each class. `prepared` is from `prepare`."""
        return n_classes

    def build(self, network: RatioNetwork, n_domains: int, prepared: Prepared) -> nn.Module:
        """Return the module to train, which contains the network; by default the network itself.

        `n_domains` is the number of sites: training sites, and sites with unlabeled rows if the method uses these.
        `prepared` is the result of `prepare`.
        """
        return network

    def loss(self, module: nn.Module, batch: Batch, memory: Any) -> Tensor:
        """Return the loss of a batch, which training minimizes.

        `module` is the result of `build`, and `memory` is that of `prepare`.
        """
        raise NotImplementedError(f"{type(self).__name__} trains no network of its own: see trainer()")

    def validation_loss(self, outputs: Tensor, rows: LabeledRows, memory: Any) -> Tensor:
        """Return the loss of the held-out rows, which chooses the best epoch; by default the NLL of the predictions."""
        return mean_nll(outputs, rows)

    def begin_epoch(self, memory: Any) -> None:
        """Update `memory` (see `prepare`) at the start of an epoch; by default nothing is done."""

    def see(self, X: Any) -> Any:
        """Return X as the network gets it, for example without a feature; by default X is unchanged."""
        return X

    def settle(self, trained: Trained) -> None:
        """Learn from the held-out rows after training, for example a calibration; by default nothing is learned.

        `trained` has the labels and weights of these rows (`held_out`), and the network's outputs for them
        (`held_out_outputs`).
        """

    def log_proba(self, X: Any, Z: Any) -> Tensor:
        """Return the predictions log P(y|x) as trained, without adaptation, (n, K)."""
        return torch.log_softmax(self.outputs(X, Z), dim=1)

    def rule_at(self, X: Any, Z: Any, y: Any, prevalence: Any) -> tuple[Rule, Any]:
        """Return the prediction rule at a site, and the estimate of its P(Y) (None if there is none).

        The arguments are those of `adapt`. The rule is a function of the X and Z of any rows that returns their
        predictions log P(y|x), (n, K). By default, the rule predicts as trained.
        """
        return self.log_proba, None

    def own_log_proba(self, rule: Rule, X: Any, Z: Any, y: Any) -> Tensor:
        """Return the predictions log P(y|x) of the rows that were passed to `adapt`, (n, K); by default by the rule."""
        return rule(X, Z)

    # Methods that the hooks use.

    def train(
        self, X: Any, y: Any, domain: Any, Z: Any, groups: Any, weight: Any, unlabeled: Mapping[str, Any] | None
    ) -> Any:
        """Train the network of this method. The arguments are those of `fit`, and the result is that for `attach`.

        On a CPU, the same seed gives the same network.
        """
        return train_method(self, X, y, domain, Z, groups, weight, unlabeled)

    def resolved_recipe(self) -> Recipe:
        """Return the recipe, changed by `epochs`, `batch_size` and `learning_rate` of this method.

        If settings of the training are wrong, one ValueError lists all problems.
        """
        problems = Problems(self.card.name)
        recipe = read_network_settings(self, problems)
        problems.raise_if_any()
        return recipe

    def own_settings(self) -> dict[str, str]:
        """Return the settings that this method has in addition to those of `Method`: a dict from names to texts."""
        own = {name: value for name, value in self.get_params(deep=False).items() if name not in Method().get_params()}
        return {name: getattr(value, "__qualname__", repr(value)) for name, value in own.items()}

    def attach(self, trained: Any) -> Self:
        """Use a network that `trainer()` has trained, call `settle`, and return this method, fitted."""
        self.trained_ = trained
        self.classes_ = trained.classes
        self.input_shape_, self.n_features_in_ = trained.input_shape, trained.n_features
        self.settle(trained)
        return self

    def outputs(self, X: Any, Z: Any = None) -> Tensor:
        """Return the outputs of the network, with a row for each row of X and a column for each output."""
        trained: Trained = self.trained_
        key = (id(X), id(Z))
        if trained.remembered is not None and key in trained.remembered:
            return trained.remembered[key][2]
        computed = trained.scorer(*self.network_rows(X, Z))
        if trained.remembered is not None:
            trained.remembered[key] = (X, Z, computed)
        return computed

    def features(self, X: Any, Z: Any = None) -> Tensor:
        """Return the D features of each row (the inputs of the network's last layer), (n, D)."""
        inputs, z = self.network_rows(X, Z)
        scorer = self.trained_.scorer
        return Scorer(LastFeatures(scorer.module), scorer.device)(inputs, z)

    def network_rows(self, X: Any, Z: Any) -> tuple[Inputs, Tensor]:
        """Return the two inputs of the network for some rows: x, and z as columns of numbers (no columns without z)."""
        reader = self.trainer()
        inputs = read_inputs(self, reader.see(X), reset=False)
        schema = self.trained_.schema if reader.reads_z else None
        return inputs, network_inputs(schema, self.codes(Z, len(inputs), reader.reads_z))

    def codes(self, Z: Any, n_rows: int, needed: bool) -> Tensor:
        """Return z as encoded by the schema of the training rows, (n, V).

        The result has no columns if `needed` is false or training had no z.
        """
        schema = self.trained_.schema
        if not needed or schema is None:
            return torch.zeros(n_rows, 0, dtype=torch.float64)
        if Z is None:
            raise ValueError(f"{self.card.name} reads z: give sample_confounder")
        codes: Tensor = schema.encode(Z)[0]
        if len(codes) != n_rows:
            raise ValueError(f"sample_confounder has {len(codes)} row(s), X has {n_rows}")
        return codes


class LastFeatures(nn.Module):
    """A network without its last layer."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        """Return the inputs of the last layer, (n, D)."""
        features: Tensor = self.network.features(x, z)  # type: ignore[operator]
        return features


def training_key(method: Method) -> str:
    """Return a text of all settings that determine the network of a method: methods with equal keys share one."""
    trainer = method.trainer()
    settings = {name: value for name, value in sorted(trainer.get_params(deep=False).items()) if name not in SILENT}
    return f"{type(trainer).__name__}({', '.join(f'{name}={value!r}' for name, value in settings.items())})"


def fit_together(methods: Sequence[Method], X: Any, y: Any, **data: Any) -> None:
    """Fit methods with the same training key: train one network, and attach it to all. `data` is as for `fit`."""
    keys = {training_key(method) for method in methods}
    if len(keys) > 1:
        raise ValueError(f"these methods do not share a network: {'; '.join(sorted(keys))}")
    names = ("sample_domain", "sample_confounder", "groups", "sample_weight", "unlabeled")
    trained = methods[0].trainer().train(X, y, *(data.get(name) for name in names))
    for method in methods:
        method.attach(trained)


@contextmanager
def remembering(methods: Sequence[Method]) -> Iterator[None]:
    """Within the block, keep the outputs of the methods' networks and reuse them for the same X and Z objects."""
    with ExitStack() as stack:
        for trained in {id(m.trained_): m.trained_ for m in methods}.values():
            trained.remembered = {}
            stack.callback(setattr, trained, "remembered", None)
        yield


def cross_fitted(n_rows: int, seed: int, predict: Callable[[Array, Array], Tensor], n_folds: int = 5) -> Tensor:
    """Predict each row by a fit to the rows of the other folds, (n, K).

    `predict(seen, scored)` fits to the rows with the numbers `seen`, and returns predictions of the rows `scored`.
    """
    order = np.random.default_rng(seed).permutation(n_rows)
    parts = [np.sort(part) for part in np.array_split(order, min(n_folds, n_rows))]
    predictions = [predict(np.setdiff1d(order, part), part) for part in parts]
    joined = torch.cat(predictions)
    return torch.empty_like(joined).index_copy_(0, torch.tensor(np.concatenate(parts)), joined)
