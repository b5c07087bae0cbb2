"""The commands of the suite: `bench`, `methods`, `data` and `demo`."""
