"""The state of an experiment's records: which were made by the current code, which by other code, which are missing."""

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
        Records that were made by the current code with the current settings, in the order of the plan.
    stale : list of Run
        Runs whose record was made by other code.
    missing : list of Run
        Runs without a record. They include the final runs of a grid only if its tuning is finished and current.
    is_tuned : bool
        Whether the settings of every grid can be chosen.
    """

    current: list[Record]
    stale: list[Run]
    missing: list[Run]
    is_tuned: bool

    @property
    def remaining(self) -> list[Run]:
        """The runs that are still to do, ordered by seed."""
        return sorted((*self.stale, *self.missing), key=lambda run: run.seed)

    @property
    def is_current(self) -> bool:
        """Whether all runs have a record that was made by the current code."""
        return self.is_tuned and not self.stale and not self.missing


def record_state(experiment: Experiment, records: Iterable[Record], digits: str | None) -> RecordState:
    """Compare the plan of an experiment with records; `digits` is the name of the data's source (`source_name`)."""
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
