"""Modules that connect saved models with other systems; each imports its package only when it is called."""
