"""What an adapted model keeps of the rows it was adapted on: scores and codes, never the inputs."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class KeptRows:
    """The rows of one site, in the order they came: calibrated log f, codes of z, and what was said about them.

    Rows where f is not identified (`supported` is false) took no part in the estimate. `features` are what the
    network's last layer reads of the rows `feature_rows`, None where the model was adapted from log-ratios alone.
    """

    log_ratio: Tensor  # (n, K)
    codes: Tensor  # (n, V)
    supported: Tensor  # (n,) bool
    weight: Tensor | None = None  # (n,)
    groups: Tensor | None = None  # (n,) numbers
    labels: Tensor | None = None  # (n,) class numbers, NaN where unknown
    features: Tensor | None = None  # (m, D) float32
    feature_rows: Tensor | None = None  # (m,)
    without_z: Tensor | None = None  # (n, K) log f(x, missing) where a joint model speaks for rows that lack z

    def __len__(self) -> int:
        return len(self.log_ratio)
