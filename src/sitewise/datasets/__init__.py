"""Data to try the method on, and image collections: manifests, packs, one way to read an image."""
