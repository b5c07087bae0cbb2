"""Models of g, the prevalence P(y|z) of a site. They share one protocol, `Prevalence`.

Each model has a function that fits it to soft labels (one-hot labels, or EM's responsibilities), and a frozen dataclass
for the result. `adaptation.families` fits models to unlabeled rows, saves them and draws from them. `SitePrior` is the
prior of a new site's g, learned from the training sites.
"""

from sitewise.prevalence.base import fit_constant
from sitewise.prevalence.prior import SitePrior

__all__ = ["SitePrior", "fit_constant"]
