"""Plan how many unlabeled rows a new site needs, with labeled source rows (docs/maths.md, section 17).

The held-out rows, weighted to the assumed prevalence, represent the new site. The width of an interval is computed from
the information of n rows. The losses of an estimate from n rows are computed by simulation.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

import numpy as np
import pandas as pd
from sklearn.isotonic import IsotonicRegression
from sklearn.utils import check_random_state

from sitewise.adaptation import PrevalenceEstimate
from sitewise.adaptation.families import FAMILIES
from sitewise.arrays import Problems
from sitewise.confounders import Confounders
from sitewise.samplesize.population import Population, read_population

TARGETS = ("width", "kl", "f1_loss")
SIZES = (100, 200, 500, 1000, 2000, 5000, 10_000)
AROUND = (0.25, 0.5, 2.0, 4.0)  # other sizes relative to the answer, if a width is wanted
SMALLEST, LARGEST = 20, 10**7
NEARLY = 1.05  # accepted width relative to the wanted one: a posterior is computed on a grid, so its width is inexact
FLOOR_SIZE = 10**7  # stands for infinitely many rows
OUT_OF_REACH = (
    "{wanted} is out of reach: no number of unlabeled rows gives a {target} below {floor:.3g}. What would help: labels "
    "of some rows of the new site, more training sites, or a better classifier"
)
ENOUGH = "{answer:,} unlabeled rows are enough for {wanted}; with 10,000,000 rows the {target} would be {floor:.3g}"
MODELS_OF_G = ("auto", *(name for name, family in FAMILIES.items() if family.quick))


@dataclass(frozen=True)
class SizePoint:
    """The results with n unlabeled rows.

    `width` is the width of the interval of P(y), without simulation: each labeled row occurs as often as expected. The
    other values are means over simulated sites, with their standard errors (`_error`); they are None without
    simulations. `kl` is KL(g || estimate) averaged over z. `f1_loss` is the expected F1 with the true g minus the F1
    with the estimate (with two classes, the F1 of class 1; otherwise the mean over classes).
    """

    n: int
    width: float
    simulated_width: float | None = None
    simulated_width_error: float | None = None
    kl: float | None = None
    kl_error: float | None = None
    f1_loss: float | None = None
    f1_loss_error: float | None = None
    n_simulations: int = 0


@dataclass(frozen=True)
class SamplePlan:
    """The answer of `plan_sample_size`: how many unlabeled rows are enough, and the results for several sizes.

    A size is a number of unlabeled rows.

    Attributes
    ----------
    answer : int or None
        The smallest size that is enough. With the target "width" it is None if 10 million rows are not enough. With
        "kl" and "f1_loss" it is interpolated between the sizes that were tried, and None if the largest of them is not
        enough.
    target : str
        The quantity that should become small: "width", "kl" or "f1_loss", as in `plan_sample_size`.
    wanted : float
        The wanted value of the target.
    points : tuple of SizePoint
        The results for each size that was tried, with the columns of `table` as attributes. With the target "width",
        the answer is one of these sizes.
    floor_kl : float
        The KL divergence with 10 million rows. It is due to f, and remains with any number of rows.
    floor_f1_loss : float
        The loss of F1 with 10 million rows.
    prevalence : tuple of K floats
        The assumed P(y) at the new site.
    level : float
        The confidence level of the intervals.
    n_source : int
        The number of labeled source rows that were used.
    floor_width : float
        The width of the interval of P(y) with 10 million rows.

    Examples
    --------
    >>> plan = plan_sample_size(log_ratio, y, Z, width=0.1)
    >>> plan.answer
    """

    answer: int | None
    target: str
    wanted: float
    points: tuple[SizePoint, ...]
    floor_kl: float
    floor_f1_loss: float
    prevalence: tuple[float, ...]
    level: float
    n_source: int
    floor_width: float = 0.0

    @property
    def floor(self) -> float:
        """The value of the target with 10 million unlabeled rows, a number that stands for infinitely many."""
        return {"width": self.floor_width, "kl": self.floor_kl, "f1_loss": self.floor_f1_loss}[self.target]

    @property
    def table(self) -> pd.DataFrame:
        """The results as a table, with a row for each size (column `n`).

        `width` is the width of the interval of P(y), computed without simulation. `simulated_width`, `kl` and `f1_loss`
        are means over `n_simulations` simulated sites (None without simulation). `simulated_width_error`, `kl_error`
        and `f1_loss_error` are their standard errors.
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
            return OUT_OF_REACH.format(wanted=wanted, target=self.target, floor=self.floor)
        return ENOUGH.format(answer=self.answer, wanted=wanted, target=self.target, floor=self.floor)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<p>{escape(str(self))}</p>{self.table[['n', 'width', 'kl', 'f1_loss']].to_html(index=False)}"


def plan_sample_size(
    log_ratio: Any,
    y: Any,
    sample_confounder: Any = None,
    *,
    width: float | None = None,
    kl: float | None = None,
    f1_loss: float | None = None,
    prevalence: Any = None,
    model: str = "auto",
    prior: Any = None,
    confounders: Confounders | None = None,
    sample_weight: Any = None,
    level: float = 0.95,
    sizes: Iterable[int] | None = None,
    n_simulations: int = 20,
    random_state: Any = 0,
    say: Callable[[str], None] = lambda text: None,
) -> SamplePlan:
    """Compute how many unlabeled rows of a new site are needed for a wanted accuracy of its prevalence.

    The new site is represented by labeled source rows that f was not fitted to (held-out rows). They get weights with
    which their P(y) is the one assumed at the new site. A simulated site is a draw from the weighted rows. Give one
    wanted accuracy: `width`, `kl` or `f1_loss`.

    Parameters
    ----------
    log_ratio : array-like of shape (m, K)
        Calibrated log f of the m labeled rows.
    y : array-like of shape (m,)
        The classes of the labeled rows, as indices 0 to K-1.
    sample_confounder : DataFrame or array-like of shape (m, V), optional
        The confounders z of the labeled rows. None: g does not depend on z.
    width : float, optional
        The wanted width of the interval of P(y), for the class with the widest interval.
    kl : float, optional
        The wanted Kullback-Leibler divergence KL(g || estimate of g), averaged over z.
    f1_loss : float, optional
        The accepted loss of F1: expected F1 of decisions with the true g, minus that of decisions with the estimate.
        With two classes it is the F1 of class 1, otherwise macro F1.
    prevalence : float or array-like of shape (K,), optional
        The assumed P(y) at the new site: K numbers, or P(y=1) for two classes. By default, it is that of the labeled
        rows. P(z|y) is always assumed to be that of the labeled rows.
    model : str
        The model of g, as in `estimate_prevalence`, but not "network".
    prior : Prevalence or SitePrior, optional
        The prior of g, as in `estimate_prevalence`.
    confounders : Confounders, optional
        The schema of z; learned from `sample_confounder` by default.
    sample_weight : array-like of shape (m,), optional
        Weights of the labeled rows.
    level : float
        The confidence level of the intervals.
    sizes : sequence of int, optional
        The numbers of unlabeled rows for which results are computed. By default these are numbers around the answer if
        a width is wanted, otherwise numbers from 100 to 10,000.
    n_simulations : int
        The number of simulated sites of each size. With 0, which is possible if a width is wanted, only widths are
        computed, without simulation.
    random_state : int
        Seed of the simulation.
    say : callable, optional
        A function that is called with a text about the progress.

    Returns
    -------
    SamplePlan
        The number of unlabeled rows that is enough, with the results for several sizes.

    Examples
    --------
    >>> plan = plan_sample_size(log_ratio, y, Z, width=0.05, prevalence=0.1)
    >>> plan.answer, plan.table
    """
    problems = Problems("plan_sample_size")
    wanted = {name: value for name, value in zip(TARGETS, (width, kl, f1_loss), strict=True) if value is not None}
    target, amount = _check_target(wanted, problems)
    if model not in MODELS_OF_G:
        problems.add(f"model must be one of {', '.join(MODELS_OF_G)}, got {model!r}")
    check_numbers(level, n_simulations, 0 if target == "width" else 2, problems)
    given = None if sizes is None else sorted({int(size) for size in sizes})
    if given is not None and (not given or given[0] < SMALLEST):
        problems.add(f"sizes must be numbers of rows from {SMALLEST} up, got {given}")
    population = read_population(
        log_ratio, y, sample_confounder, prevalence, model, confounders, sample_weight, problems, prior
    )
    rng = np.random.default_rng(check_random_state(random_state).randint(2**31))
    say("the information of the rows")
    answer, floor_width = None, information_width(population, FLOOR_SIZE, level)
    if target == "width" and floor_width <= NEARLY * amount:
        answer = size_for_width(lambda n: information_width(population, n, level), amount)
    chosen = given or (SIZES if answer is None else [round_up(answer * factor) for factor in AROUND])
    every = sorted({*chosen, *([] if answer is None else [answer])})
    points = []
    for size in every:
        say(f"sites of {size:,} rows")
        points.append(look_at_size(population, size, level, n_simulations, rng))
    if target != "width":
        answer = size_for_loss(points, target, amount)
    floor_kl, floor_f1 = population.losses(population.estimate(FLOOR_SIZE * population.weight))
    shares = np.bincount(population.y, population.weight, population.log_ratio.shape[1])
    about = (tuple(shares.tolist()), level, len(population.y), floor_width)
    return SamplePlan(answer, target, amount, tuple(points), floor_kl, floor_f1, *about)


def look_at_size(
    population: Population, n: int, level: float, n_simulations: int, rng: np.random.Generator
) -> SizePoint:
    """Return the results at one size: the width by information, and the simulated width, KL and loss of F1."""
    width = information_width(population, n, level)
    estimates = []
    for _ in range(n_simulations):
        estimate = population.estimate(rng.multinomial(n, population.weight).astype(float))
        estimates.append([interval_width(estimate, level), *population.losses(estimate)])
    if n_simulations < 2:
        return SizePoint(n, width)
    values = np.array(estimates)
    means, errors = values.mean(axis=0), values.std(axis=0, ddof=1) / math.sqrt(n_simulations)
    return SizePoint(
        n,
        width,
        simulated_width=float(means[0]),
        simulated_width_error=float(errors[0]),
        kl=float(means[1]),
        kl_error=float(errors[1]),
        f1_loss=float(means[2]),
        f1_loss_error=float(errors[2]),
        n_simulations=n_simulations,
    )


def information_width(population: Population, n: int, level: float) -> float:
    """Return the width of the interval if each labeled row occurs as often as expected among n rows of the site."""
    return interval_width(population.estimate(n * population.weight), level)


def interval_width(estimate: PrevalenceEstimate, level: float) -> float:
    """Return the width of the interval of P(y), for the class with the widest interval."""
    low, high = estimate.interval(level=level)
    return float(np.max(np.asarray(high) - np.asarray(low)))


def size_for_width(width_at: Callable[[int], float], wanted: float) -> int | None:
    """Return the size at which the width is `wanted`, or None if it would be above LARGEST.

    The search assumes that the width is about proportional to one over the square root of the size.
    """
    size = 1000
    for _ in range(12):
        width = width_at(size)
        if abs(width / wanted - 1) < 0.005:
            break
        ratio = width / wanted
        if ratio > math.sqrt(1.5 * LARGEST / size):
            return None
        better = size * ratio**2
        following = int(min(LARGEST, max(SMALLEST, math.ceil(better))))
        if following == size:
            break
        size = following
    return size if width_at(size) <= NEARLY * wanted else None


def size_for_loss(points: Sequence[Any], target: str, wanted: float) -> int | None:
    """Return the smallest size at which the loss is at most `wanted`, or None if the largest size is not enough.

    The losses are first made monotone in the size. Between two sizes, the logarithm of the loss is interpolated
    linearly in the logarithm of the size.
    """
    sizes = np.array([point.n for point in points], dtype=float)
    losses = np.array([getattr(point, target) for point in points], dtype=float)
    errors = np.array([getattr(point, f"{target}_error") for point in points], dtype=float)
    weight = 1 / np.maximum(errors, max(errors.max() * 1e-3, 1e-12)) ** 2
    smooth = (
        IsotonicRegression(increasing=False).fit(np.log(sizes), losses, sample_weight=weight).predict(np.log(sizes))
    )
    enough = np.flatnonzero(smooth <= wanted)
    if not len(enough):
        return None
    first = int(enough[0])
    if first == 0 or smooth[first] <= 0:
        return int(sizes[first])
    x, height = np.log(sizes[first - 1 : first + 1]), np.log(smooth[first - 1 : first + 1])
    share = (height[0] - math.log(wanted)) / (height[0] - height[1])
    return math.ceil(math.exp(x[0] + share * (x[1] - x[0])) - 1e-9)


def round_up(size: float) -> int:
    """Round up to two significant digits, within the allowed sizes."""
    step = 10 ** max(0, math.floor(math.log10(max(size, 1))) - 1)
    return int(min(LARGEST, max(SMALLEST, math.ceil(size / step) * step)))


def check_numbers(level: float, n_simulations: int, fewest: int, problems: Problems) -> None:
    """Add a wrong level or too few simulations to `problems`."""
    if not 0 < level < 1:
        problems.add(f"level must lie between 0 and 1, got {level}")
    if n_simulations < fewest:
        problems.add(f"n_simulations must be at least {fewest}, got {n_simulations}")


def _check_target(wanted: dict[str, float], problems: Problems) -> tuple[str, float]:
    if len(wanted) != 1:
        came = ", ".join(f"{name}={value}" for name, value in wanted.items()) or "none of them"
        problems.add(f"give one of {', '.join(TARGETS)}, got {came}")
        return "width", 1.0
    ((name, value),) = wanted.items()
    if not 0 < value < (1 if name != "kl" else math.inf):
        problems.add(f"{name} must be a number above 0{'' if name == 'kl' else ' and below 1'}, got {value!r}")
    return name, float(value)
