"""How many unlabeled rows a new site needs, from labeled source rows alone (docs/maths.md, section 17)."""

from sitewise.samplesize.plan import TARGETS, SamplePlan, SizePoint, plan_sample_size

__all__ = ["TARGETS", "SamplePlan", "SizePoint", "plan_sample_size"]
