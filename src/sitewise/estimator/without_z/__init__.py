"""Rows that lack z: models of the ratio r(x,y,z), predictions with them, and the choice between them and knockout."""
