"""Data to try the method on."""
