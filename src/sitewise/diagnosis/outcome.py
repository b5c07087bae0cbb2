"""What was done at a site and why: adapted, partly adapted, or as trained. One record behind everything that says so.

The thresholds of the outcome and of the verdict are here and nowhere else; docs/trust.md states them.
"""

from collections.abc import Iterable

from sitewise.diagnosis.result import Finding, Grounds

ENOUGH_BELIEVED = 0.8  # of the change that the rows ask for: from here on the site counts as adapted
UNCHANGED = 0.1  # log-odds: a smaller mean change of the predictions is none
PRECISE = 0.1  # half the interval of P(Y) from the rows alone: a narrower one would have shown a change
ASSUMPTION = ("stability", "representation", "mixture")  # the checks that speak against believing the rows
SIZES = {"stability": "gap", "representation": "auc", "mixture": "shortfall"}  # how large a breach each of them finds


def decide(found: Grounds) -> tuple[str, str]:
    """The word and the reason."""
    if found.policy != "auto":
        return ("as trained" if found.policy == "as trained" else "adapted"), "asked"
    if found.failed is not None:
        return "as trained", "check"
    if found.change < UNCHANGED:
        return "as trained", "nothing changed"
    discounted = found.without_rehearsal - found.believed > (1.0 - found.believed) / 2.0
    if found.believed * found.change >= UNCHANGED:
        if found.believed >= ENOUGH_BELIEVED:
            return "adapted", "the rows"
        return "partly adapted", "rehearsal" if discounted else "few rows"
    if found.by_chance:
        return "as trained", "nothing changed" if found.half_width <= PRECISE else "cannot tell"
    return "as trained", "rehearsal" if discounted else "cannot tell"


def follows(word: str, reason: str, failed: str | None, findings: Iterable[Finding]) -> str:
    """The verdict that follows: "adapt", "care" or "do not adapt"."""
    if failed is not None or (word, reason) == ("as trained", "rehearsal"):
        return "do not adapt"
    if word == "partly adapted" or any(finding.severity in ("care", "stop") for finding in findings):
        return "care"
    return "adapt"


def failed_check(findings: Iterable[Finding], rehearsed: dict[str, float]) -> str | None:
    """The gravest check of the assumption that stops beyond what rehearsed sites show; None where none does.

    `rehearsed` has the largest breach that each check found at rehearsed sites: what adapting did there in spite of it
    is in the rehearsal's numbers already.
    """
    stopped = {
        finding.name: finding for finding in findings if finding.name in ASSUMPTION and finding.severity == "stop"
    }
    for name in ASSUMPTION:
        if name in stopped and not stopped[name].details[SIZES[name]] <= rehearsed.get(name, 0.0):
            return name
    return None
