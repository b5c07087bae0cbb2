"""The posterior of a new site's g (section 18 of docs/maths.md).

log g(z) = a · shape(z) + level + deviation(z). `levels` estimates the level and the factor a, `deviation` the deviation
from the shape, and `fit` combines them. `points` are the weighted points that are kept and used in predictions.
"""
