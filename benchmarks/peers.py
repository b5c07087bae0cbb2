"""Other libraries with which the benchmarks compare, each wrapped in a function."""

import warnings

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from quapy.method.aggregative import EMQ


def emq(prior, posterior):
    """Return the class shares by QuaPy's EM with its defaults, (K,)."""
    return EMQ.EM(prior, posterior)[0]


def abstention_em(prior, posterior, labels_prior_rows):
    """Return the class shares by the EM of the package abstention, on calibrated probabilities, (K,).

    The package computes the source's prior from `labels_prior_rows`, one-hot labels.
    """
    from abstention.label_shift import EMImbalanceAdapter

    adapter = EMImbalanceAdapter(calibrator_factory=None)
    adapted = adapter(
        tofit_initial_posterior_probs=posterior,
        valid_posterior_probs=np.tile(prior, (len(labels_prior_rows), 1)),
        valid_labels=labels_prior_rows,
    )
    shares = adapted.multipliers * prior
    return shares / shares.sum()
