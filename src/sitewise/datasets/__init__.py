"""Data to try the method on, and images of many sites: simulated sites, packs, sites from a manifest."""
