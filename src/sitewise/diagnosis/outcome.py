"""Decide the outcome of an adaptation: adapted, partly adapted, or as trained, with its reason.

The thresholds of the outcome are defined here, and those of a check in the module of the check. docs/checks.md
describes them.
"""

from collections.abc import Iterable

from sitewise.diagnosis.result import Finding, Grounds

ENOUGH_TRUSTED = 0.8  # share of the change from which the outcome is "adapted"
UNCHANGED = 0.1  # log-odds; a smaller mean change of the predictions is ignored
PRECISE = 0.1  # half the width of P(Y)'s interval from the rows alone; a narrower one would have shown a change
ASSUMPTION = ("stability", "representation", "mixture")  # the checks of the assumption
SIZES = {
    "stability": "gap",
    "representation": "auc",
    "mixture": "shortfall",
}  # the detail with each check's effect size


def decide(grounds: Grounds) -> tuple[str, str]:
    """Return the outcome and its reason."""
    if grounds.policy != "auto":
        return ("as trained" if grounds.policy == "as trained" else "adapted"), "asked"
    if grounds.failed is not None:
        return "as trained", "check"
    if grounds.change < UNCHANGED:
        return "as trained", "nothing changed"
    discounted = grounds.without_rehearsal - grounds.applied_share > (1.0 - grounds.applied_share) / 2.0
    if grounds.applied_share * grounds.change >= UNCHANGED:
        if grounds.applied_share >= ENOUGH_TRUSTED:
            return "adapted", "the rows"
        return "partly adapted", "rehearsal" if discounted else "few rows"
    if grounds.by_chance:
        return "as trained", "nothing changed" if grounds.half_width <= PRECISE else "cannot tell"
    return "as trained", "rehearsal" if discounted else "cannot tell"


def follows(word: str, reason: str, failed: str | None, findings: Iterable[Finding]) -> str:
    """Return the verdict that follows from an outcome and the findings: "adapt", "care" or "do not adapt"."""
    if failed is not None or (word, reason) == ("as trained", "rehearsal"):
        return "do not adapt"
    if word == "partly adapted" or any(finding.severity in ("care", "stop") for finding in findings):
        return "care"
    return "adapt"


def failed_check(findings: Iterable[Finding], rehearsed: dict[str, float]) -> str | None:
    """Return the first check of the assumption that failed, or None.

    A check fails if its finding is "stop" and its effect size is larger than at every rehearsed site. `rehearsed` is
    the largest effect size of each check at rehearsed sites. Smaller violations are already included in the rehearsal.
    """
    stopped = {
        finding.name: finding for finding in findings if finding.name in ASSUMPTION and finding.severity == "stop"
    }
    for name in ASSUMPTION:
        if name in stopped and not stopped[name].details[SIZES[name]] <= rehearsed.get(name, 0.0):
            return name
    return None
