"""Find the columns in which a site's shift of P(y|z) is concentrated, without labels.

g has the training sites' shape and the site's own level. Row n then has the score s_n = P(y|x_n,z_n) - g(z_n). If the
shape is right too, scores are unrelated to any column. They are related to a column along which g differs from the
training sites (equation 22b).
"""

from collections.abc import Sequence

import torch
from scipy.stats import chi2
from torch import Tensor

from sitewise.diagnosis.heterogeneity import SMALLEST, ScoreTest
from sitewise.posterior import combine, contrasts

STEPS = 500
CLOSE = 1e-10


def shift_concentration(
    log_ratio: Tensor, log_prevalence: Tensor, columns: Sequence[Tensor], weight: Tensor
) -> list[ScoreTest]:
    """Test for each column (features (n, d)) whether g differs along it from the training sites' g (n, K).

    `log_ratio` (n, K) is log f. The level of g is estimated from the rows, so that a shift of the level alone does not
    count.
    """
    log_g = with_own_level(log_ratio, log_prevalence, weight)
    basis = contrasts(log_ratio.shape[1])
    scores = (combine(log_ratio, log_g).exp() - log_g.exp()) @ basis  # (n, K-1)
    tests = []
    for column in columns:
        centred = column - (weight @ column) / weight.sum()
        products = weight[:, None] * (centred[:, :, None] * scores[:, None, :]).flatten(1)
        values, vectors = torch.linalg.eigh(products.T @ products)
        telling = values > SMALLEST * values.max().clamp_min(1e-300) if len(values) else values > 0
        total = vectors.T @ products.sum(0)
        statistic = float((total[telling] ** 2 / values[telling]).sum())
        freedom = int(telling.sum())
        tests.append(ScoreTest(statistic, freedom, float(chi2.sf(statistic, freedom)) if freedom else 1.0))
    return tests


def with_own_level(log_ratio: Tensor, log_prevalence: Tensor, weight: Tensor) -> Tensor:
    """Return log g (n, K) with the rows' own level: the one at which predictions and g have the same mean."""
    level = torch.zeros(log_ratio.shape[1], dtype=torch.float64)
    log_g = log_prevalence
    for _ in range(STEPS):
        log_g = torch.log_softmax(log_prevalence + level, dim=1)
        predicted, expected = weight @ combine(log_ratio, log_g).exp(), weight @ log_g.exp()
        step = predicted.clamp_min(1e-300).log() - expected.clamp_min(1e-300).log()
        level = level + step - step.mean()
        if float(step.abs().max()) < CLOSE:
            break
    return log_g
