"""Rows that lack z: models of r(x,y,z), the choice between them and knockout, and the predictions."""
