"""The posterior of a new site's g (section 18 of docs/maths.md).

log g(z) = a · shape(z) + level + deviation(z), where the shape is that of the source's g. `levels` estimates the level
and the factor a, `deviation` estimates the deviation from the shape, and `fit` combines them. `points` has the weighted
points that represent the posterior in predictions.
"""
