"""Networks that map an input x to features: a perceptron, the paper's CNN, networks of other libraries, or your own."""
