"""The data collections of the experiments, in their published form."""
