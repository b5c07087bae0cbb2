"""Figures and the page of a site, from plain numbers only: no model is needed to draw them again."""
