"""The collections that experiments are run on, each as its owners publish it."""
