"""The provenance of numbers: the versions, the commit and the code by which they were computed."""

from sitewise.artifacts.folders import versions
from sitewise.bench.experiments.fingerprint import script_fingerprint
from sitewise.bench.experiments.provenance import UNKNOWN
from sitewise.bench.experiments.provenance import commit as known_commit


def provenance(script):
    """Return versions, commit, and the fingerprint of a script with all code that it imports."""
    made_by = {name: versions()[name] for name in ("sitewise", "torch", "numpy")}
    return made_by | {"commit": commit(), "fingerprint": script_fingerprint(script)}


def commit():
    """Return the commit; exit if it is unknown."""
    known = known_commit()
    if known == UNKNOWN:
        raise SystemExit("git does not work here: set SITEWISE_COMMIT to the commit that these files are")
    return known
