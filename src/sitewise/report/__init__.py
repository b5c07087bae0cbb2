"""Figures and the report page of a site, from plain numbers only: they can be drawn again without the model."""
