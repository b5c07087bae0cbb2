"""How far a site's rows are believed, as a caller says it."""

import warnings

from sitewise.arrays import Problems, did_you_mean

POLICIES = ("auto", "as trained", "rows")
OLD_NAME = (
    "fallback={value!r} is what policy='auto' does: where a check fails predictions are as trained. Leave fallback out"
)
GONE = (
    "fallback='marginal' is gone: it believed the rows where the checks had rejected them. Leave it out for "
    "policy='auto', which is as trained there, or take policy='rows'"
)


def read_policy(policy: str, fallback: str | None = None) -> str:
    """The policy, checked; `fallback`, its old name, is accepted with a warning."""
    problems = Problems("adapt")
    if policy not in POLICIES:
        problems.add(f"policy must be one of {', '.join(POLICIES)}, got {policy!r}{did_you_mean(policy, POLICIES)}")
    if fallback == "marginal":
        problems.add(GONE)
    elif fallback not in (None, "pooled"):
        problems.add(f"fallback must be None or 'pooled', got {fallback!r}{did_you_mean(fallback, ['pooled'])}")
    problems.raise_if_any()
    if fallback is not None:
        warnings.warn(OLD_NAME.format(value=fallback), DeprecationWarning, stacklevel=3)
    return policy
