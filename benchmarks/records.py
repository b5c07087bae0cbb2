"""Where numbers come from: the versions and the commit that made them."""

from sitewise.artifacts import versions
from sitewise.bench.experiments.provenance import UNKNOWN
from sitewise.bench.experiments.provenance import commit as known_commit


def provenance():
    """The versions and the commit."""
    return {name: versions()[name] for name in ("sitewise", "torch", "numpy")} | {"commit": commit()}


def commit():
    """The commit; a study without one does not start."""
    known = known_commit()
    if known == UNKNOWN:
        raise SystemExit("git does not work here: set SITEWISE_COMMIT to the commit that these files are")
    return known
