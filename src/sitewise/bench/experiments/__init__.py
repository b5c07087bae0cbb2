"""Experiments: a YAML becomes a plan, the plan's runs become records, and records become choices and tables.

Public names are imported when first used, as in the package: reading records needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

_ROOM_OF = {
    "ALL_METRICS": "experiment",
    "LOWER_IS_BETTER": "experiment",
    "Choice": "experiment",
    "Draw": "experiment",
    "Entry": "experiment",
    "Experiment": "experiment",
    "SiteSpec": "experiment",
    "Tuning": "experiment",
    "read_experiment": "reading",
    "Run": "plan",
    "final_runs": "plan",
    "tuning_runs": "plan",
    "Record": "records",
    "read_records": "records",
    "RecordState": "state",
    "record_state": "state",
    "run_fingerprint": "fingerprint",
    "script_fingerprint": "fingerprint",
    "run_one": "scoring",
    "RunError": "runner",
    "records_path": "runner",
    "run_experiment": "runner",
    "choose_settings": "selection",
    "final_records": "summary",
    "summarize": "summary",
}
__all__ = [*_ROOM_OF]

if TYPE_CHECKING:
    from sitewise.bench.experiments.experiment import ALL_METRICS as ALL_METRICS
    from sitewise.bench.experiments.experiment import LOWER_IS_BETTER as LOWER_IS_BETTER
    from sitewise.bench.experiments.experiment import Choice as Choice
    from sitewise.bench.experiments.experiment import Draw as Draw
    from sitewise.bench.experiments.experiment import Entry as Entry
    from sitewise.bench.experiments.experiment import Experiment as Experiment
    from sitewise.bench.experiments.experiment import SiteSpec as SiteSpec
    from sitewise.bench.experiments.experiment import Tuning as Tuning
    from sitewise.bench.experiments.fingerprint import run_fingerprint as run_fingerprint
    from sitewise.bench.experiments.fingerprint import script_fingerprint as script_fingerprint
    from sitewise.bench.experiments.plan import Run as Run
    from sitewise.bench.experiments.plan import final_runs as final_runs
    from sitewise.bench.experiments.plan import tuning_runs as tuning_runs
    from sitewise.bench.experiments.reading import read_experiment as read_experiment
    from sitewise.bench.experiments.records import Record as Record
    from sitewise.bench.experiments.records import read_records as read_records
    from sitewise.bench.experiments.runner import RunError as RunError
    from sitewise.bench.experiments.runner import records_path as records_path
    from sitewise.bench.experiments.runner import run_experiment as run_experiment
    from sitewise.bench.experiments.scoring import run_one as run_one
    from sitewise.bench.experiments.selection import choose_settings as choose_settings
    from sitewise.bench.experiments.state import RecordState as RecordState
    from sitewise.bench.experiments.state import record_state as record_state
    from sitewise.bench.experiments.summary import final_records as final_records
    from sitewise.bench.experiments.summary import summarize as summarize


def __getattr__(name: str) -> object:
    """Import a public name from its file on first use (PEP 562)."""
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'sitewise.bench.experiments' has no attribute {name!r}")
    value = getattr(import_module(f"sitewise.bench.experiments.{_ROOM_OF[name]}"), name)
    globals()[name] = value
    return value
