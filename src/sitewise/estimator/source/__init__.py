"""Labeled source rows: read, split, held out; g of their sites, and the regions of z where f cannot be known."""
