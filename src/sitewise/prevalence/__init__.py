"""Models of g, the prevalence P(y|z) of a site, with one protocol (`Prevalence`).

Each model has a function that fits it to soft labels (one-hot labels, or EM's responsibilities), and a frozen result.
`adaptation.families` fits them to unlabeled rows, saves them and draws from them. `SitePrior` is the prior of a new
site's g, learned from the training sites.
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
