"""`calibrate_log_ratio` reads and checks arrays, and fits a calibration."""

from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from sitewise.arrays import Problems, read_groups, read_labels, read_matrix, read_weight, to_tensor
from sitewise.calibration.fit import METHODS, Calibration, fit_calibration, resample_calibration


def calibrate_log_ratio(
    log_ratio: Any,
    y: Any,
    log_prevalence: Any,
    method: str = "vector",
    *,
    sample_weight: Any = None,
    groups: Any = None,
    n_resamples: int = 0,
    random_state: Any = None,
) -> Calibration:
    """Fit a calibration of log f to held-out labeled rows, by minimizing the NLL of equation 3.

    Parameters
    ----------
    log_ratio : array of shape (n, K)
        log f of held-out labeled rows.
    y : array of shape (n,)
        Class indices 0..K-1.
    log_prevalence : array of shape (n, K) or (K,)
        log g of each row at its own site, or one log g for all rows. The g of a row must not be fitted to the label of
        this row: use cross-fitting.
    method : {"vector", "bias_corrected", "temperature", "none"}
        "temperature": one slope for all classes and no bias. "bias_corrected": one slope for all classes, and a bias
        for each class. "vector": a slope and a bias for each class. With two classes, "vector" and "bias_corrected" are
        the same. "none": log f is not changed.
    sample_weight : array of shape (n,), optional
        One weight for each row.
    groups : array of shape (n,), optional
        The group of each row, for example the patient. All rows of a group are resampled together.
    n_resamples : int
        The number of bootstrap resamples of the rows. The calibration is refitted to each of them, with log g fixed.
    random_state : int, RandomState or None
        Seed of the resamples, as in scikit-learn.

    Returns
    -------
    Calibration
        The calibration. Call it on log f of rows of any site.

    Examples
    --------
    >>> calibration = calibrate_log_ratio(log_ratio, y, log_prevalence, method="vector", n_resamples=100)
    >>> log_ratio_here = calibration(log_ratio_of_another_site)
    >>> resampled = [refit(log_ratio_of_another_site) for refit in calibration.resamples()]
    """
    problems = Problems("calibrate_log_ratio")
    if method not in METHODS:
        problems.add(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    if isinstance(n_resamples, bool) or not isinstance(n_resamples, Integral) or n_resamples < 0:
        problems.add(f"n_resamples must be a whole number from 0 up, got {n_resamples!r}")
    ratios = read_matrix(log_ratio, "log_ratio", problems)
    if ratios is None:
        problems.raise_if_any()
    assert ratios is not None
    n_rows, n_classes = ratios.shape
    labels = read_labels(y, n_rows, n_classes, problems)
    weight = read_weight(sample_weight, n_rows, problems, ratios.device)
    units = read_groups(groups, n_rows, problems, ratios.device)
    prior = _read_log_prevalence(log_prevalence, ratios, problems)
    known = torch.tensor(labels, device=ratios.device)
    if known.isnan().any():
        problems.add(f"y has {int(known.isnan().sum())} unknown label(s): calibration needs labeled rows only")
    problems.raise_if_any()
    target = known.long()
    _check_classes(target, weight, n_classes, method, prior, problems)
    problems.raise_if_any()
    one_hot = torch.nn.functional.one_hot(target, n_classes).to(ratios.dtype)
    calibration = fit_calibration(ratios, one_hot, prior, weight, method)
    if n_resamples == 0:
        return calibration
    return resample_calibration(
        calibration, ratios, one_hot, prior, weight, units, n_resamples=n_resamples, random_state=random_state
    )


def _read_log_prevalence(log_prevalence: Any, ratios: Tensor, problems: Problems) -> Tensor:
    try:
        prior = to_tensor(log_prevalence, ratios.device)
    except (TypeError, ValueError) as error:
        problems.add(f"log_prevalence must be numbers ({error})")
        return torch.zeros_like(ratios)
    if prior.shape not in (ratios.shape, ratios.shape[1:]):
        problems.add(
            f"log_prevalence must have shape {tuple(ratios.shape)} or ({ratios.shape[1]},), got {tuple(prior.shape)}"
        )
        return torch.zeros_like(ratios)
    if prior.isnan().any() or (prior == torch.inf).any():
        problems.add("log_prevalence must hold logs of probabilities, got NaN or +inf")
    return prior.expand_as(ratios)


def _check_classes(
    target: Tensor, weight: Tensor, n_classes: int, method: str, prior: Tensor, problems: Problems
) -> None:
    seen = set(target[weight > 0].tolist())
    absent = sorted(set(range(n_classes)) - seen)
    if len(seen) == 1 and method != "none":
        problems.add(f"y holds one class only ({seen.pop()}): calibration needs at least two")
    elif absent and method in ("bias_corrected", "vector"):
        problems.add(f"y has no row of class {absent}, whose bias then has no optimum: use method='temperature'")
    impossible = (prior.gather(1, target[:, None])[:, 0] == -torch.inf).nonzero().flatten().tolist()
    if impossible:
        problems.add(f"log_prevalence calls the label of row {impossible[0]} impossible (-inf)")
