"""log f of rows before calibration: by a network, with or without a cache, or from a classifier's probabilities."""
