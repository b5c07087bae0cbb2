"""A model adapted to one site: predictions row by row, and the site's prevalence with its interval."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sitewise.adaptation import PrevalenceEstimate
from sitewise.estimator.prevalences import in_regions
from sitewise.estimator.reading import read_inputs
from sitewise.posterior import combine

if TYPE_CHECKING:
    from sitewise.estimator.gpa import GPAClassifier


class AdaptedClassifier:
    """What `GPAClassifier.adapt` gives back; the model behind it serves other sites too.

    Attributes
    ----------
    estimate : the `PrevalenceEstimate` of the site.
    classes_ : the classes, in order.
    """

    def __init__(self, model: "GPAClassifier", estimate: PrevalenceEstimate, kept_codes: Tensor, n_rows: int) -> None:
        self.model = model
        self.estimate = estimate
        self.classes_ = model.classes_
        self._kept_codes = kept_codes
        self._kept_share = len(kept_codes) / n_rows

    def predict_proba(self, X: Any, sample_confounder: Any = None) -> Any:
        """P(y|x,z) at this site, (n, K), each row by itself; z may be missing in part or whole."""
        inputs = read_inputs(self.model, X, reset=False)
        codes = self.model._codes(sample_confounder, len(inputs))
        probability = combine(self.model._log_ratio(inputs, codes), self._log_prevalence(codes)).exp()
        return probability.to(X.device) if isinstance(X, Tensor) else probability.numpy()

    def adjust(self, log_ratio: Any, sample_confounder: Any = None) -> Any:
        """P(y|x,z) at this site, (n, K), given what the model's `log_ratio` said of the rows with this very z."""
        ratios = torch.as_tensor(log_ratio).double().cpu()
        codes = self.model._codes(sample_confounder, len(ratios))
        return combine(ratios, self._log_prevalence(codes)).exp().numpy()

    def predict(self, X: Any, sample_confounder: Any = None) -> Any:
        """The most probable class of every row."""
        return self.classes_[np.asarray(self.predict_proba(X, sample_confounder)).argmax(axis=1)]

    def prevalence(self, Z: Any = None) -> Any:
        """Estimate of P(Y) here, (K,), or of P(Y|Z), (n, K)."""
        if Z is None:
            return self._mix(np.asarray(self.estimate.marginal))
        return self._log_prevalence(self._codes(Z)).exp().numpy()

    def prevalence_interval(self, Z: Any = None, level: float = 0.95) -> tuple[Any, Any]:
        """Interval of P(Y), two (K,), or of P(Y|Z), two (n, K), given f; no width where the training g is kept."""
        if Z is None:
            low, high = self.estimate.interval(level=level)
            return self._mix(np.asarray(low)), self._mix(np.asarray(high))
        low, high = (np.array(bound) for bound in self.estimate.interval(Z, level=level))
        codes = self._codes(Z)
        kept = in_regions(codes, self.model._unsupported).numpy()
        low[kept] = high[kept] = self._log_prevalence(codes).exp().numpy()[kept]
        return low, high

    def _codes(self, Z: Any) -> Tensor:
        if self.model.confounders_ is None:
            raise ValueError("Z is given, but the model was trained without confounders")
        return self.model.confounders_.encode(Z)[0]

    def _log_prevalence(self, codes: Tensor) -> Tensor:
        """log g here; in regions where f is not identified, the training prevalence (equation 12)."""
        here = self.estimate.prevalence.log_prob(codes)
        kept = in_regions(codes, self.model._unsupported)
        if not kept.any():
            return here
        return torch.where(kept[:, None], self.model._pooled_prevalence.log_prob(codes), here)

    def _mix(self, outside: Any) -> Any:
        """Average over the whole site: estimated outside the kept regions, training prevalence inside."""
        if not len(self._kept_codes):
            return outside
        inside = self.model._pooled_prevalence.log_prob(self._kept_codes).exp().mean(dim=0).numpy()
        return (1 - self._kept_share) * outside + self._kept_share * inside
