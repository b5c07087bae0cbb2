"""Plan how many rows and how many labels a new site needs, with labeled source rows (docs/maths.md, section 17)."""

from sitewise.samplesize.labels import LabelPlan, plan_labels
from sitewise.samplesize.plan import SamplePlan, plan_sample_size

__all__ = ["LabelPlan", "SamplePlan", "plan_labels", "plan_sample_size"]
