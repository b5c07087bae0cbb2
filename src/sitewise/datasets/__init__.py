"""Simulated sites, and images of several sites from a manifest, in memory or packed on the disk."""
