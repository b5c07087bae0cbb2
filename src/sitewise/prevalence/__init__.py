"""Models of g, the prevalence P(y|z) of a site, behind one protocol.

Each has a fit function from soft labels (labels are one-hot, responsibilities are EM's) and a frozen result. How it is
fitted to unlabeled rows, saved and drawn is its family's part (`adaptation.families`); `SitePrior` is what several
training sites say about the next.
"""

from sitewise.prevalence.additive import AdditivePrevalence, fit_additive
from sitewise.prevalence.base import ConstantPrevalence, Prevalence, fit_constant
from sitewise.prevalence.network import NetworkPrevalence, fit_network
from sitewise.prevalence.pooled import pool_sites
from sitewise.prevalence.prior import SitePrior, missing_information
from sitewise.prevalence.table import TablePrevalence, fit_table

__all__ = [
    "AdditivePrevalence",
    "ConstantPrevalence",
    "NetworkPrevalence",
    "Prevalence",
    "SitePrior",
    "TablePrevalence",
    "fit_additive",
    "fit_constant",
    "fit_network",
    "fit_table",
    "missing_information",
    "pool_sites",
]
