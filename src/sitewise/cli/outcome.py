"""The outcome at a site, as text for the terminal."""

from typing import TYPE_CHECKING

from rich.text import Text

if TYPE_CHECKING:
    from sitewise.diagnosis import Diagnosis

VERDICT_STYLES = {"adapt": "bold green", "care": "bold yellow", "do not adapt": "bold red"}


def outcome_text(diagnosis: "Diagnosis", *, all_findings: bool = False) -> Text:
    """The outcome at a site with its reason and risk, the verdict, and findings that need care, with advice."""
    assert diagnosis.outcome is not None
    said = Text.assemble((diagnosis.outcome.sentence, "bold"), f"\n{diagnosis.outcome.risk}\nverdict: ")
    said.append(diagnosis.verdict, VERDICT_STYLES[diagnosis.verdict])
    for finding in diagnosis.findings:
        if all_findings:
            said.append(f"\n  {finding}")
        elif finding.severity in ("care", "stop"):
            said.append(f"\n  {finding.name}: {finding.sentence} {finding.advice}".rstrip())
    return said
