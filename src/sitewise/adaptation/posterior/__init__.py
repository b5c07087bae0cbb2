"""The posterior of a new site's g (section 18 of docs/maths.md).

log g(z) = a · shape(z) + level + deviation(z). `points` is what is kept of it and predicted with, `levels` finds the
level and the factor a, `deviation` what is added to the shape, `fit` puts them together.
"""
