"""Experiments: a YAML becomes a plan, the plan's runs become records, records become choices and tables."""

from sitewise.benchmark.experiment import (
    ALL_METRICS,
    LOWER_IS_BETTER,
    Choice,
    Draw,
    Entry,
    Experiment,
    SiteSpec,
    Tuning,
)
from sitewise.benchmark.plan import Run, final_runs, tuning_runs
from sitewise.benchmark.reading import read_experiment
from sitewise.benchmark.records import Record, read_records
from sitewise.benchmark.runner import RunError, records_path, run_experiment
from sitewise.benchmark.scoring import run_one
from sitewise.benchmark.selection import choose_settings
from sitewise.benchmark.summary import final_records, summarize

__all__ = [
    "ALL_METRICS",
    "LOWER_IS_BETTER",
    "Choice",
    "Draw",
    "Entry",
    "Experiment",
    "Record",
    "Run",
    "RunError",
    "SiteSpec",
    "Tuning",
    "choose_settings",
    "final_records",
    "final_runs",
    "read_experiment",
    "read_records",
    "records_path",
    "run_experiment",
    "run_one",
    "summarize",
    "tuning_runs",
]
