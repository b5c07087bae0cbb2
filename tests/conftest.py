"""Settings every test shares."""

import os

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("quick", max_examples=20, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=200, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
