"""What the benchmarks compare with, each behind one function."""

import warnings

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from quapy.method.aggregative import EMQ


def emq(prior, posterior):
    """QuaPy's EM at its defaults: the class shares, (K,)."""
    return EMQ.EM(prior, posterior)[0]


def abstention_em(prior, posterior, labels_prior_rows):
    """abstention's EM on probabilities that are calibrated already: the class shares, (K,).

    It takes the source's prior from valid_labels, one-hot rows.
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
