"""Empirical risk minimization: with x alone, with x and z, and with x without its colour."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn

from sitewise.arrays import Problems
from sitewise.bench.datasets.digits import grayscale
from sitewise.bench.methods.base import Method
from sitewise.bench.methods.card import Card
from sitewise.bench.methods.objective import Batch
from sitewise.confounders import Confounders
from sitewise.ratio import weighted_nll


@dataclass(kw_only=True, eq=False, repr=False)
class ERM(Method):
    """ERM [vapnik1998statistical]: minimize the mean of -log P(y|x) over the rows of all sites.

    Assumes that P(y|x) at a new site is that of the training rows of all sites together.
    """

    card: ClassVar[Card] = Card(name="ERM", cite="vapnik1998statistical")

    def loss(self, module: nn.Module, batch: Batch, memory: Any) -> Tensor:
        """Return the weighted mean NLL of the batch."""
        return weighted_nll(module(batch.x, batch.z), batch.y, batch.weight)


@dataclass(kw_only=True, eq=False, repr=False)
class ERMWithZ(ERM):
    """ERM^Z: minimize the mean of -log P(y|x,z) over the rows of all sites.

    Assumes that P(y|x,z) is the same at every site.
    """

    card: ClassVar[Card] = Card(
        name="ERM^Z",
        cite="vapnik1998statistical",
        input="X, Z",
        continuous_z=True,
        high_dimensional_z=True,
        z_at_test="needed",
    )
    reads_z: ClassVar[bool] = True


@dataclass(kw_only=True, eq=False, repr=False)
class ERMWithoutColor(ERM):
    """ERM^c: ERM on images from which the confounder is removed.

    It is a reference in comparisons, because it is given the property to remove, which is not known at a real site.

    Parameters
    ----------
    drop : callable
        A function that maps X to X without this property; by default it removes the colour of colored digits.
    """

    drop: Callable[[Any], Any] = grayscale
    card: ClassVar[Card] = Card(
        name="ERM^c", cite="vapnik1998statistical", given="the feature to drop", note="for colored images"
    )

    def see(self, X: Any) -> Any:
        """Return X without the property that `drop` removes."""
        try:
            return self.drop(np.asarray(X))
        except ValueError as error:
            raise ValueError(f"ERM^c drops the colour of images: {error}") from error


BASES: dict[str, type[Method]] = {"erm": ERM, "erm_z": ERMWithZ, "erm_c": ERMWithoutColor}


@dataclass(kw_only=True, eq=False, repr=False)
class OverERM(Method):
    """Base class of methods that adjust the predictions of a trained ERM to a site.

    Parameters
    ----------
    base : str
        The ERM whose network is used: "erm" (reads x), "erm_z" (reads x and z) or "erm_c" (the confounder is removed
        from x).
    """

    base: str = "erm"

    def trainer(self) -> Method:
        """Return the ERM whose network is used, with the same training settings."""
        problems = Problems(self.card.name)
        self.check(problems)
        problems.raise_if_any()
        kind = BASES[self.base]
        names = Method().get_params(deep=False)
        return kind(**{name: value for name, value in self.get_params(deep=False).items() if name in names})

    def check(self, problems: Problems) -> None:
        """Add a message to `problems` for each wrong setting."""
        if self.base not in BASES:
            problems.add(f"base must be one of {', '.join(BASES)}, got {self.base!r}")

    def refusal(self, n_sites: int, confounders: Confounders | None, n_unlabeled: int) -> str | None:
        """Return the reason why the ERM whose network is used cannot be trained; None if it can.

        The data are described by the number of training sites, the confounders and the number of unlabeled rows.
        """
        return self.trainer().refusal(n_sites, confounders, n_unlabeled)
