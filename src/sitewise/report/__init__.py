"""Figures from plain records: whoever has a `demo.json` can draw it again without a model."""
