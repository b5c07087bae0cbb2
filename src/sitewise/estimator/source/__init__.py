"""Labeled source rows: read, split, held out; g of their sites, and regions of z where f is not identified."""
