"""Plan how many labels a new site needs, with simulated sites at which f has errors as large as in the rehearsal."""

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.utils import check_random_state

from sitewise.adaptation import estimate_prevalence
from sitewise.arrays import Problems
from sitewise.confounders import Confounders
from sitewise.posterior import combine
from sitewise.prevalence import SitePrior
from sitewise.samplesize.plan import check_numbers, interval_width, size_for_loss
from sitewise.samplesize.population import Population, read_population

LABELS = (25, 50, 100, 200, 400)
ROWS = 1000
LABEL_TARGETS = ("width", "log_loss")

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class LabelPoint:
    """The results with n labels: means over simulated sites, with their standard errors (`_error`).

    `width` is the width of the interval of P(y), for the class with the widest interval. `log_loss` is the log loss
    minus that of the true f and g.
    """

    n: int
    width: float
    width_error: float
    log_loss: float
    log_loss_error: float


@dataclass(frozen=True)
class LabelPlan:
    """The answer of `plan_labels`: how many labels are enough, and the results for all numbers that were tried.

    Attributes
    ----------
    answer : int or None
        The smallest number of labels that is enough, interpolated between the numbers that were tried. Zero if no label
        is needed; None if the largest number is not enough.
    target : str
        The quantity that should become small: "width" or "log_loss", as in `plan_labels`.
    wanted : float
        The wanted value of the target.
    points : tuple of LabelPoint
        The results for each number of labels, zero first, with the columns of `table` as attributes.
    rows : int
        The number of rows of the site, labeled and unlabeled together.
    prevalence : tuple of K floats
        The assumed P(y) at the new site.
    level : float
        The confidence level of the intervals.
    n_simulations : int
        The number of simulated sites.

    Examples
    --------
    >>> plan = model.plan_labels(width=0.1)
    >>> plan.answer
    """

    answer: int | None
    target: str
    wanted: float
    points: tuple[LabelPoint, ...]
    rows: int
    prevalence: tuple[float, ...]
    level: float
    n_simulations: int

    @property
    def table(self) -> pd.DataFrame:
        """The results as a table, with a row for each number of labels (column `n`).

        `width` and `log_loss` are means over the simulated sites. `log_loss` is the log loss of the predictions minus
        that of predictions with the true f and g. `width_error` and `log_loss_error` are standard errors.
        """
        return pd.DataFrame([asdict(point) for point in self.points])

    def to_dict(self) -> dict[str, Any]:
        """Convert the plan to a dict of plain values, for JSON.

        Returns
        -------
        dict
            The attributes of the plan by name.
        """
        return asdict(self)

    def __str__(self) -> str:
        wanted = f"{self.target} {self.wanted:g}"
        if self.answer is None:
            return f"{wanted} is out of reach with up to {self.points[-1].n:,} labels among {self.rows:,} rows"
        return f"{self.answer:,} labels among {self.rows:,} rows are enough for {wanted}"


def plan_labels(
    log_ratio: Any,
    y: Any,
    sample_confounder: Any = None,
    *,
    width: float | None = None,
    log_loss: float | None = None,
    prior: SitePrior,
    rows: int = ROWS,
    prevalence: Any = None,
    model: str = "auto",
    confounders: Confounders | None = None,
    sample_weight: Any = None,
    level: float = 0.95,
    labels: Iterable[int] | None = None,
    n_simulations: int = 20,
    random_state: Any = 0,
    say: Callable[[str], None] = lambda text: None,
) -> LabelPlan:
    """Compute how many rows of a new site should be labeled for a wanted accuracy.

    New sites are simulated by draws of labeled source rows that f was not fitted to (held-out rows), weighted to the
    P(y) that is assumed at the new site. Give one wanted accuracy: `width` or `log_loss`.

    Parameters
    ----------
    log_ratio : array-like of shape (m, K)
        Calibrated log f of the m labeled source rows.
    y : array-like of shape (m,)
        The classes of these rows, as indices 0 to K-1.
    sample_confounder : DataFrame or array-like of shape (m, V), optional
        The confounders z of these rows. None: g does not depend on z.
    width : float, optional
        The wanted width of the interval of P(y), for the class with the widest interval.
    log_loss : float, optional
        The wanted excess of the log loss: the log loss of the predictions, minus that of predictions with the true f
        and g.
    prior : SitePrior
        The prior of a new site, estimated by the rehearsal: `prior_` of a fitted model. At each simulated site, the
        slope and the level of f get random errors, which are as large as this prior expects.
    rows : int
        The number of rows of the new site, labeled and unlabeled together.
    prevalence : float or array-like of shape (K,), optional
        The assumed P(y) at the new site, as in `plan_sample_size`.
    model : str
        The model of g, as in `estimate_prevalence`.
    confounders : Confounders, optional
        The schema of z; learned from `sample_confounder` by default.
    sample_weight : array-like of shape (m,), optional
        Weights of the labeled source rows.
    level : float
        The confidence level of the intervals.
    labels : sequence of int, optional
        The numbers of labels to try, in addition to zero. By default, those of 25, 50, 100, 200 and 400 that are below
        `rows`.
    n_simulations : int
        The number of simulated sites, at least 2. All numbers of labels are tried at each of them.
    random_state : int
        Seed of the simulation.
    say : callable, optional
        A function that is called with a text about the progress.

    Returns
    -------
    LabelPlan
        The number of labels that is enough, with the results for all numbers that were tried.

    Examples
    --------
    >>> plan = plan_labels(log_ratio, y, Z, log_loss=0.01, prior=prior)
    >>> plan.answer, plan.table
    """
    problems = Problems("plan_labels")
    wanted = {name: value for name, value in (("width", width), ("log_loss", log_loss)) if value is not None}
    if len(wanted) != 1 or not all(0 < value < math.inf for value in wanted.values()):
        problems.add(f"give one of {', '.join(LABEL_TARGETS)}, a number above 0, got {wanted or 'none of them'}")
    numbers = _read_numbers(labels, rows, problems)
    check_numbers(level, n_simulations, 2, problems)
    population = read_population(
        log_ratio, y, sample_confounder, prevalence, model, confounders, sample_weight, problems, prior
    )
    target, amount = next(iter(wanted.items()))
    rng = np.random.default_rng(check_random_state(random_state).randint(2**31))
    found = np.empty((n_simulations, len(numbers) + 1, 2))
    for number in range(n_simulations):
        say(f"site {number + 1} of {n_simulations}")
        found[number] = look_at_site(population, prior, rows, [0, *numbers], level, rng)
    errors = found.std(axis=0, ddof=1) / math.sqrt(n_simulations)
    pairs = np.stack([found.mean(axis=0), errors], axis=-1).reshape(len(numbers) + 1, -1)  # each mean, then its error
    points = tuple(LabelPoint(n, *values) for n, values in zip([0, *numbers], pairs.tolist(), strict=True))
    answer = 0 if getattr(points[0], target) <= amount else size_for_loss(points[1:], target, amount)
    shares = np.bincount(population.y, population.weight, population.log_ratio.shape[1])
    return LabelPlan(answer, target, amount, points, rows, tuple(shares.tolist()), level, n_simulations)


def _read_numbers(labels: Iterable[int] | None, rows: int, problems: Problems) -> list[int]:
    """Return the numbers of labels to try, in increasing order."""
    numbers = [n for n in LABELS if n < rows] if labels is None else sorted({int(number) for number in labels})
    if not numbers or numbers[0] < 1 or numbers[-1] > rows:
        problems.add(f"labels must be numbers from 1 to rows={rows}, got {numbers}")
    return numbers


def look_at_site(
    population: Population, prior: SitePrior, rows: int, numbers: list[int], level: float, rng: np.random.Generator
) -> Array:
    """Simulate one site; return the width of the interval and the excess log loss for each number of labels.

    The result has the shape (numbers, 2). The estimate uses an f with errors: the true f with another slope and level.
    These errors are drawn with the scales in `prior`, those at sites not seen in training.
    """
    drawn = rng.choice(len(population.y), rows, p=population.weight)
    right, log_g, y = population.log_ratio[drawn], population.log_prevalence[drawn], population.y[drawn]
    slope = prior.slope * math.exp(prior.slope_scale * rng.standard_normal())
    off = np.asarray(rng.normal(scale=prior.level_error / math.sqrt(2.0), size=right.shape[1]))
    handed = right / slope + (off - off.mean())
    truth = combine(torch.tensor(right), torch.tensor(log_g)).exp().numpy()
    Z = None if population.z is None else population.z.iloc[drawn].reset_index(drop=True)
    labeled = rng.permutation(rows)
    errors = []
    for number in numbers:
        known = np.full(rows, np.nan)
        known[labeled[:number]] = y[labeled[:number]]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about simulated sites are irrelevant
            estimate = estimate_prevalence(
                handed,
                Z,
                model=population.model,
                prior=prior,
                confounders=population.schema,
                y=known if number else None,
            )
        predicted = np.asarray(estimate.predict_proba(handed, Z)).clip(1e-12)
        lost = (truth * (np.log(truth.clip(1e-300)) - np.log(predicted))).sum(axis=1).mean()
        errors.append([interval_width(estimate, level), float(lost)])
    return np.array(errors)
