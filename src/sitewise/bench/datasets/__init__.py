"""Readers of the data collections of the experiments, in the form in which these are published."""
