"""log f of rows before calibration: by a network, kept in a folder or not, or from a classifier's probabilities."""
