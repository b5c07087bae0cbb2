"""The state of an experiment's records: made by the current code, by other code, or missing."""

from collections.abc import Iterable
from dataclasses import dataclass

from sitewise.bench.experiments.experiment import Experiment
from sitewise.bench.experiments.fingerprint import run_fingerprint
from sitewise.bench.experiments.plan import Run, final_runs, is_tuned, tuning_runs
from sitewise.bench.experiments.records import FINGERPRINT, Record
from sitewise.bench.experiments.selection import choose_settings


@dataclass(frozen=True)
class RecordState:
    """The state of the runs of an experiment, according to its records.

    Attributes
    ----------
    current : list of dict
        Records made by this code with these settings, in the order of the plan.
    stale : list of Run
        Runs whose record was made by other code.
    missing : list of Run
        Runs without a record. Final runs of a grid are planned once its tuning is current.
    is_tuned : bool
        Whether the settings of every grid can be chosen.
    """

    current: list[Record]
    stale: list[Run]
    missing: list[Run]
    is_tuned: bool

    @property
    def remaining(self) -> list[Run]:
        """The runs to do, in the order of seeds."""
        return sorted((*self.stale, *self.missing), key=lambda run: run.seed)

    @property
    def is_current(self) -> bool:
        """Whether all runs are recorded by the current code."""
        return self.is_tuned and not self.stale and not self.missing


def record_state(experiment: Experiment, records: Iterable[Record], digits: str | None) -> RecordState:
    """Compare the plan of an experiment with records; `digits` names the source of its data."""
    known = {record["id"]: record for record in records}
    tuning = tuning_runs(experiment, digits)
    chosen = choose_settings(experiment, [known[run.id] for run in tuning if _is_current(run, known)], digits)
    runs = {run.id: run for run in (*tuning, *final_runs(experiment, chosen, digits))}
    return RecordState(
        current=[known[run.id] for run in runs.values() if _is_current(run, known)],
        stale=[run for run in runs.values() if run.id in known and not _is_current(run, known)],
        missing=[run for run in runs.values() if run.id not in known],
        is_tuned=all(entry.label in chosen for entry in experiment.methods if is_tuned(entry)),
    )


def _is_current(run: Run, known: dict[str, Record]) -> bool:
    return run.id in known and known[run.id].get(FINGERPRINT) == run_fingerprint(run)
