"""How many rows and how many labels a new site needs, from labeled source rows (docs/maths.md, section 17)."""

from sitewise.samplesize.labels import LABEL_TARGETS, LabelPlan, LabelPoint, plan_labels
from sitewise.samplesize.plan import TARGETS, SamplePlan, SizePoint, plan_sample_size

__all__ = [
    "LABEL_TARGETS",
    "TARGETS",
    "LabelPlan",
    "LabelPoint",
    "SamplePlan",
    "SizePoint",
    "plan_labels",
    "plan_sample_size",
]
