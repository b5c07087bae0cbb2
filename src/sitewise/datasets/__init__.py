"""Simulated sites, and images of many sites from a manifest, in memory or packed on the disk."""
