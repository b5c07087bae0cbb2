"""Sites of handwritten digits: colored digits, which are the paper's simulation, and plain digits with label shift.

Colored digits: the label y is 1 if the digit is 5 or more, and z is the colour of the image. A site is defined by a
joint distribution P(y, z), which is given by a causal model (`CAUSAL_MODELS`: those of the paper, and `graded`) or by a
table. P(x|y,z) is the same at every site, unless the image shows a variable that is not in Z and is related to y
(`hidden`). Plain digits: the label is the digit, and a site is defined by its P(y).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from sitewise.arrays import Problems, did_you_mean
from sitewise.bench.datasets.mnist import MNIST_MD5 as MNIST_MD5
from sitewise.bench.datasets.mnist import Array, Digits
from sitewise.bench.datasets.mnist import load_digits as load_digits
from sitewise.sites import Site

COLORINGS = ("binary", "hue", "saturation")
ALPHA = 0.3  # the paper's value
PATCH = slice(2, 6)  # rows and columns of the hidden variable's patch: near a corner, visible after augmentation
TWEAKED = 3  # the class whose share `tweak_one` sets, as in the published experiments
FLIPPED = np.array([[0.25, 0.45], [0.25, 0.05]])  # P(y, z), rows y: P(z) uniform, P(y=1|z=0) = 0.5, P(y=1|z=1) = 0.1
FLIPPED.flags.writeable = False


def confounded(n: int, alpha: float, beta: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Draw y and the score of z, which both depend on a hidden S: y = [βS + (1-β)α > ½], score = βS + (1-β)U.

    S and U are uniform on [0, 1]; [...] is 1 if the condition holds and 0 otherwise.
    """
    hidden = rng.random(n)
    y = beta * hidden + (1 - beta) * alpha > 0.5
    return y.astype(np.int64), beta * hidden + (1 - beta) * rng.random(n)


def y_causes_z(n: int, alpha: float, beta: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Draw y, which is 1 if βU + (1-β)α > ½, and then the score of z, βy/2 + (1-β/2)U'.

    U and U' are uniform on [0, 1].
    """
    y = beta * rng.random(n) + (1 - beta) * alpha > 0.5
    return y.astype(np.int64), beta * y / 2 + (1 - beta / 2) * rng.random(n)


def z_causes_y(n: int, alpha: float, beta: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Draw the score U of a binary z, and then y, which is 1 if βz/2 + βU'/2 + (1-β)α > ½.

    U and U' are uniform on [0, 1].
    """
    score = rng.random(n)
    y = beta * binary(score) / 2 + beta * rng.random(n) / 2 + (1 - beta) * alpha > 0.5
    return y.astype(np.int64), score


def graded(n: int, alpha: float, beta: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Draw y with P(y=1|U) = σ(20 (β-½) (U-½) + 4 (β-½-α)), and the score U of z, which is uniform on [0, 1].

    Unlike in the paper's models, both classes occur at all z, so that f is identified everywhere. For β < ½ the
    relation of y and z is reversed.
    """
    score = rng.random(n)
    slope, level = _grade(alpha, beta)
    y = rng.random(n) < 1 / (1 + np.exp(-slope * (score - 0.5) - level))
    return y.astype(np.int64), score


def _grade(alpha: float, beta: float) -> tuple[float, float]:
    """Return slope and level of the log-odds of y in the graded model."""
    return 20 * (beta - 0.5), 4 * (beta - 0.5 - alpha)


CausalModel = Callable[[int, float, float, np.random.Generator], tuple[Array, Array]]
CAUSAL_MODELS: dict[str, CausalModel] = {
    "confounded": confounded,
    "y_causes_z": y_causes_z,
    "z_causes_y": z_causes_y,
    "graded": graded,
}


def binary(score: Array) -> Array:
    """Return the paper's binary z: 1 if the score is above ½, otherwise 0."""
    return (score > 0.5).astype(np.int64)


def from_table(n: int, joint: Any, rng: np.random.Generator) -> tuple[Array, Array]:
    """Draw y and z from a joint distribution P(y, z), a (2, L) table with a row for each y; z is a level, 0 to L-1."""
    table = np.asarray(joint, dtype=float)
    if table.ndim != 2 or len(table) != 2 or not (table >= 0).all() or not abs(table.sum() - 1) <= 1e-6:
        raise ValueError(
            f"joint must be a (2, L) table of probabilities that sum to one, rows y, got {np.asarray(joint).tolist()}"
        )
    y, z = np.divmod(rng.choice(table.size, n, p=table.ravel() / table.sum()), table.shape[1])
    return y, z


def true_joint(model: str, alpha: float, beta: float) -> Array:
    """Return the exact P(y, z) of a causal model with the binary z, (2, 2), with a row for each y."""
    _check_model(model, alpha, beta)
    if model == "graded":
        slope, level = _grade(alpha, beta)
        ends = level + slope * np.array([-0.5, 0.0, 0.5])
        halves = np.diff(np.logaddexp(0, ends)) / slope if slope else np.full(2, 0.5 / (1 + np.exp(-level)))
        return np.stack([0.5 - halves, halves])
    cut = (0.5 - (1 - beta) * alpha) / beta  # y = 1 if the uniform variable is above this
    if model == "confounded":
        start = float(np.clip(cut, 0, 1))
        p_y = np.array([start, 1 - start])
        p_both = np.array([_red_mass(0, start, beta), _red_mass(start, 1, beta)])
        return np.stack([p_y - p_both, p_both], axis=1)
    if model == "y_causes_z":
        p_y1 = 1 - np.clip(cut, 0, 1)
        p_z1 = 1 - np.clip((0.5 - beta * np.arange(2) / 2) / (1 - beta / 2), 0, 1)
        return np.array([1 - p_y1, p_y1])[:, None] * np.stack([1 - p_z1, p_z1], axis=1)
    p_y1 = 1 - np.clip(2 * cut - np.arange(2), 0, 1)
    return np.stack([1 - p_y1, p_y1]) / 2


def _red_mass(low: float, high: float, beta: float) -> float:
    """Return the integral of P(z=1|S=s) from s = low to high in the confounded model.

    P(z=1|S=s) is piecewise linear, so the trapezoidal rule is exact.
    """
    bends = np.clip([(beta - 0.5) / beta, 0.5 / beta], low, high)
    s = np.array([low, *bends, high])
    red = np.clip((0.5 - beta + beta * s) / (1 - beta), 0, 1)
    return float(np.sum(np.diff(s) * (red[1:] + red[:-1]) / 2))


def color(images: Array, z: Any, coloring: str = "binary") -> Array:
    """Color gray images (n, H, W) by z: uint8 (n, 3, H, W).

    `binary` is green for z=0 and red for z=1; `hue` is a mixture of green (z=0) and red (z=1); `saturation` goes from
    white (z=0) to red (z=1). `grayscale` restores the gray image exactly for each coloring.
    """
    z = np.asarray(z, dtype=float)
    problems = Problems("color")
    if coloring not in COLORINGS:
        problems.add(f"coloring must be one of {', '.join(COLORINGS)}, got {coloring!r}")
    if z.shape != (len(images),):
        problems.add(f"z must have one value for each of {len(images)} image(s), got shape {z.shape}")
    if coloring == "binary" and not np.isin(z, (0, 1)).all():
        problems.add("z must be 0 or 1 for the coloring 'binary': use 'hue' or 'saturation' for a continuous z")
    elif not ((z >= 0) & (z <= 1)).all():
        problems.add("z must lie in [0, 1], without NaN")
    problems.raise_if_any()
    colored = np.zeros((len(images), 3, *images.shape[1:]), dtype=np.uint8)
    faded = np.rint(images * (1 - z).astype(np.float32)[:, None, None]).astype(np.uint8)
    if coloring == "saturation":
        colored[:, 0], colored[:, 1], colored[:, 2] = images, faded, faded
    else:
        colored[:, 0], colored[:, 1] = images - faded, faded
    return colored


def grayscale(X: Array) -> Array:
    """Remove the colour that `color` gave, for the baseline ERM^c: uint8 (n, 1, H, W).

    The result does not depend on z. The patch of a hidden variable (`mark`) remains visible, because ERM^c is told
    about the colour only.
    """
    if X.ndim != 4 or X.shape[1] != 3 or X.dtype != np.uint8:
        raise ValueError(f"X must be uint8 (n, 3, H, W), as color makes it, got {X.dtype} {X.shape}")
    # In hue, red and green sum to the image and blue is empty; in saturation, green equals blue and red is the image.
    green, blue = X[:, 1:2], X[:, 2:]
    return np.asarray(X[:, :1] + (np.maximum(green, blue) - np.minimum(green, blue)))


def mark(X: Array, hidden: Any) -> Array:
    """Show a binary variable in colored images (n, 3, H, W): a patch near a corner is blue for 1 and black for 0."""
    marked = X.copy()
    marked[:, :, PATCH, PATCH] *= ~np.asarray(hidden, dtype=bool)[:, None, None, None]
    marked[:, 2, PATCH, PATCH] += 255 * np.asarray(hidden, dtype=np.uint8)[:, None, None]
    return marked


def draw_site(
    digits: Digits,
    y: Any,
    z: Any,
    name: str,
    rng: np.random.Generator,
    coloring: str = "binary",
    column: str = "color",
) -> Site:
    """Make a site with given labels y and colours z. The image of each row is drawn from the digits with its label.

    Rows with y=1 get a digit from 5 to 9 and rows with y=0 a digit from 0 to 4, drawn with replacement. Z has one
    column, named `column`: "red" or "green" for the coloring `binary`, otherwise the number z.
    """
    y, z = np.asarray(y), np.asarray(z)
    problems = Problems(f"site {name!r}")
    if y.ndim != 1 or z.shape != y.shape:
        problems.add(f"y and z must have one value for each row, got shapes {y.shape} and {z.shape}")
    if not np.isin(y, (0, 1)).all():
        problems.add("y must be 0 or 1")
    pools = [np.flatnonzero((digits.labels >= 5) == label) for label in range(2)]
    for label, pool in enumerate(pools):
        if not len(pool) and (y == label).any():
            problems.add(f"the digits {digits.name!r} have none of {'5 to 9' if label else '0 to 4'} for y={label}")
    problems.raise_if_any()
    rows = np.empty(len(y), dtype=np.int64)
    for label, pool in enumerate(pools):
        mine = y == label
        rows[mine] = rng.choice(pool, mine.sum()) if mine.any() else 0
    X = color(digits.images[rows], z, coloring)
    shown = np.where(z == 1, "red", "green").astype(object) if coloring == "binary" else z.astype(float)
    return Site(name, X, y.astype(np.int64), pd.DataFrame({column: shown}))


def colored_site(
    digits: Digits,
    n: int,
    *,
    model: str = "confounded",
    alpha: float = ALPHA,
    beta: float | None = None,
    joint: Any = None,
    coloring: str = "binary",
    hidden: float | None = None,
    name: str | None = None,
    seed: int = 0,
) -> Site:
    """Draw a site of n colored digits from a causal model or from a table P(y, z).

    y is 1 for the digits 5 to 9 and 0 for the others, and z is shown as the colour of the image. First y and z are
    drawn, and then a digit with this y.

    In the paper, sites differ in the parameter β of a causal model. The model draws y and a score in [0, 1] for each
    row. With the coloring "binary", z is 1 if the score is above ½, otherwise 0. With any other coloring, z is the
    score. A table with two columns gives z = 0 and z = 1; with more columns, the values of z are equally spaced in
    [0, 1].

    An omitted confounder u is 0 or 1. It is shown in the image as a patch near a corner, but not contained in Z.
    P(u=1|y) is ½ + s (y - ½), where s is `hidden`; given y, u is independent of z. With the same seed, digits and
    colours are the same for every s.

    Parameters
    ----------
    digits : Digits
        The digits to draw from, with replacement.
    n : int
        The number of rows.
    model : str
        The causal model: "confounded", "y_causes_z", "z_causes_y" (the models of the paper) or "graded".
    alpha : float
        The parameter α of the causal model, which is the same at all sites.
    beta : float, optional
        The parameter β of the causal model at this site. Give either `beta` or `joint`.
    joint : array-like of shape (2, L), optional
        The table P(y, z), with a row for each y and a column for each of L values of z.
    coloring : str
        How z is shown. "binary": green for z = 0, and red for z = 1. "hue": a mixture of green and red. "saturation":
        from white (z = 0) to red (z = 1).
    hidden : float, optional
        The number s in [-1, 1] for an omitted confounder u. With 0, u is independent of y. None: there is no u. It must
        be None with the coloring "saturation".
    name : str, optional
        The name of the site.
    seed : int
        The seed of the draw.

    Returns
    -------
    Site
        X (images, uint8 of shape (n, 3, 28, 28)), y, and Z with the column `color`: "green" or "red" for the coloring
        "binary", otherwise the number z.
    """
    rng = np.random.default_rng(seed)
    _check_hidden(hidden, coloring)
    if (beta is None) == (joint is None):
        raise ValueError("give either beta, for a causal model, or joint, a table P(y, z)")
    if joint is not None:
        y, z = from_table(n, joint, rng)
        n_levels = np.shape(joint)[1]
        if n_levels > 2:
            z = z / (n_levels - 1)
        site = draw_site(digits, y, z, name or "table", rng, coloring)
    else:
        assert beta is not None
        _check_model(model, alpha, beta)
        y, score = CAUSAL_MODELS[model](n, alpha, beta, rng)
        z = binary(score) if coloring == "binary" else score
        site = draw_site(digits, y, z, name or f"{model} {beta:g}", rng, coloring)
    if hidden is None:
        return site
    return replace(site, X=mark(site.X, rng.random(n) < 0.5 + hidden * (y - 0.5)))


def label_shift_site(digits: Digits, n: int, prevalence: Any, name: str, seed: int = 0) -> Site:
    """Draw a site of n plain digits with ten classes: X is uint8 (n, 1, 28, 28), y the digit, and there is no z.

    Labels are drawn from `prevalence` (10,). Then the image of each row is drawn from the digits with its label, with
    replacement.
    """
    share = np.asarray(prevalence, dtype=float)
    problems = Problems(f"site {name!r}")
    if share.shape != (10,) or not (share >= 0).all() or not abs(share.sum() - 1) <= 1e-6:
        problems.add(f"prevalence must be 10 probabilities that sum to one, got {share.tolist()}")
    else:
        absent = np.flatnonzero((np.bincount(digits.labels, minlength=10) == 0) & (share > 0))
        if len(absent):
            problems.add(
                f"the digits {digits.name!r} have none of {', '.join(map(str, absent))}: set their share to zero"
            )
    problems.raise_if_any()
    rng = np.random.default_rng(seed)
    y = rng.choice(10, n, p=share / share.sum())
    rows = np.empty(n, dtype=np.int64)
    for label in np.unique(y):
        mine = y == label
        rows[mine] = rng.choice(np.flatnonzero(digits.labels == label), mine.sum())
    return Site(name, digits.images[rows][:, None], y)


def dirichlet(parameter: float, n_classes: int, rng: np.random.Generator) -> Array:
    """Draw shares from a symmetric Dirichlet distribution; a smaller concentration gives a stronger shift."""
    return rng.dirichlet(np.full(n_classes, parameter))


def tweak_one(parameter: float, n_classes: int, rng: np.random.Generator) -> Array:
    """Return shares in which class 3 has the share `parameter` and all others are equal; nothing is random."""
    share = np.full(n_classes, (1 - parameter) / (n_classes - 1))
    share[TWEAKED] = parameter
    return share


def app(parameter: float, n_classes: int, rng: np.random.Generator) -> Array:
    """Draw a point of the grid of shares in steps of `parameter`; all points are equally probable (QuaPy's APP)."""
    n_steps = round(1 / parameter)
    bars = np.sort(rng.choice(n_steps + n_classes - 1, n_classes - 1, replace=False))  # "stars and bars"
    counts = np.diff(np.r_[-1, bars, n_steps + n_classes - 1]) - 1
    return np.asarray(counts / n_steps)


SHIFTS: dict[str, Callable[[float, int, np.random.Generator], Array]] = {
    "dirichlet": dirichlet,
    "tweak_one": tweak_one,
    "app": app,
}


def shifted_prevalence(kind: str, parameter: float, n_classes: int, rng: np.random.Generator) -> Array:
    """Return a shifted P(y), (K,), for experiments with label shift.

    `dirichlet` draws it with the concentration `parameter` (0.1, 1 or 10 in alexandari2020maximum); `tweak_one` gives
    class 3 the share `parameter` (0.01 or 0.9 in that paper). `app` draws a point of a grid in steps of `parameter`,
    which must be one over a whole number, as in the artificial prevalence protocol of moreo2021quapy.
    """
    problems = Problems("label shift")
    if kind not in SHIFTS:
        problems.add(f"kind must be one of {', '.join(SHIFTS)}, got {kind!r}{did_you_mean(kind, SHIFTS)}")
    elif kind == "dirichlet" and not parameter > 0:
        problems.add(f"a Dirichlet distribution's concentration must be above 0, got {parameter}")
    elif kind == "tweak_one" and not 0 <= parameter <= 1:
        problems.add(f"the share of class {TWEAKED} must lie in [0, 1], got {parameter}")
    elif kind == "app" and not (0 < parameter <= 1 and abs(1 / parameter - round(1 / parameter)) < 1e-9):
        problems.add(f"the steps of a grid must be one over a whole number, as 0.2 is, got {parameter}")
    if n_classes <= (TWEAKED if kind == "tweak_one" else 1):
        problems.add(f"{kind} needs more classes, got {n_classes}")
    problems.raise_if_any()
    return SHIFTS[kind](parameter, n_classes, rng)


def _check_model(model: str, alpha: float, beta: float) -> None:
    problems = Problems("colored digits")
    if model not in CAUSAL_MODELS:
        problems.add(f"model must be one of {', '.join(CAUSAL_MODELS)}, got {model!r}")
    if not 0 <= alpha <= 1:
        problems.add(f"alpha must lie in [0, 1], got {alpha}")
    if not 0 < beta < 1:
        problems.add(f"beta must lie strictly between 0 and 1, got {beta}")
    problems.raise_if_any()


def _check_hidden(hidden: float | None, coloring: str) -> None:
    problems = Problems("hidden confounder")
    if hidden is not None and not -1 <= hidden <= 1:
        problems.add(f"hidden must lie in [-1, 1], or be None for no patch, got {hidden}")
    if hidden is not None and coloring == "saturation":
        problems.add("the coloring 'saturation' uses blue, where the patch is shown: use 'binary' or 'hue'")
    problems.raise_if_any()
