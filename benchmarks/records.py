"""Where numbers come from: the versions, the commit and the code that made them."""

from sitewise.artifacts.folders import versions
from sitewise.bench.experiments.fingerprint import script_fingerprint
from sitewise.bench.experiments.provenance import UNKNOWN
from sitewise.bench.experiments.provenance import commit as known_commit


def provenance(script):
    """The versions, the commit, and the fingerprint of a script with all it imports."""
    made_by = {name: versions()[name] for name in ("sitewise", "torch", "numpy")}
    return made_by | {"commit": commit(), "fingerprint": script_fingerprint(script)}


def commit():
    """The commit; a study without one does not start."""
    known = known_commit()
    if known == UNKNOWN:
        raise SystemExit("git does not work here: set SITEWISE_COMMIT to the commit that these files are")
    return known
