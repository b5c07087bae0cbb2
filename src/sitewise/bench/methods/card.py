"""The entries of a method in the paper's two tables of methods: its inputs, its limits and what it needs."""

from dataclasses import dataclass

from sitewise.confounders import Confounders
from sitewise.confounders.variables import Continuous


@dataclass(frozen=True)
class Card:
    """What a method assumes and needs: its entries in the table of methods, which `sitewise methods` prints.

    A reference is a method that uses information which is not available at a new site. It is in comparisons, but is not
    a competitor.

    Parameters
    ----------
    name : str
        The method's name in tables.
    cite : str
        A key of docs/references.bib.
    input : str
        The inputs of a prediction: "X" or "X, Z".
    single_site, several_sites : bool
        Whether the method can be trained on one site, and on several sites.
    continuous_z, high_dimensional_z : bool, optional
        Whether z may be continuous, and whether it may have many variables. None: the question does not apply.
    z_at_test : str
        Whether z is needed at a new site: "no", "optional" or "needed".
    labels_at_test : str
        The information about the labels of a new site that the method needs: "no" (none), "P(Y)", "labels" or "true g".
        A method with a value other than "no" is a reference.
    unlabeled_in_training : bool
        Whether training also uses unlabeled rows of other sites, such as the new site.
    estimates_g : str
        How g of the new site is estimated, in words; "no" if it is not estimated.
    without_z : str
        How rows without z are predicted, in words; "-" if the method does not use z, or cannot predict such rows.
    given : str
        The information about the confounder that the method is given before training; empty if there is none. A method
        with such information is a reference.
    note : str
        A remark that is printed below the table.
    """

    name: str
    cite: str
    input: str = "X"
    single_site: bool = True
    several_sites: bool = True
    continuous_z: bool | None = None
    high_dimensional_z: bool | None = None
    z_at_test: str = "no"
    labels_at_test: str = "no"
    unlabeled_in_training: bool = False
    estimates_g: str = "no"
    without_z: str = "-"
    given: str = ""
    note: str = ""

    @property
    def is_reference(self) -> bool:
        """Whether the method is a reference: whether it uses information that is not available at a new site."""
        return self.labels_at_test != "no" or bool(self.given)


def refuse(card: Card, n_sites: int, confounders: Confounders | None) -> str | None:
    """Return the reason why a method cannot be used with these sites and confounders; None if it can."""
    if n_sites < 2 and not card.single_site:
        return f"{card.name} compares training sites and needs at least two, got {n_sites}"
    if n_sites > 1 and not card.several_sites:
        return f"{card.name} is made for one training site, got {n_sites}"
    if confounders is None:
        return f"{card.name} needs confounders: give sample_confounder" if "Z" in card.input else None
    continuous = [v.name for v in confounders.variables if isinstance(v, Continuous)]
    if continuous and card.continuous_z is False:
        names = ", ".join(map(repr, continuous))
        return f"{card.name} works with categorical confounders only, {names} is continuous: bin it, or set bins="
    return None
