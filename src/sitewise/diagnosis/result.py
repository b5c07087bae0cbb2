"""What a diagnosis says: findings, each with its number and its advice, and one verdict over all of them."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

SEVERITIES = ("good", "unknown", "care", "stop")  # from harmless to grave
VERDICTS = {"good": "adapt", "unknown": "adapt", "care": "care", "stop": "do not adapt"}
SENTENCES = {
    "adapt": "No check speaks against adapting here.",
    "care": "Look at the marked findings before relying on adapted numbers.",
    "do not adapt": "Adapting here is not supported by the data.",
}
WORDS = ("adapted", "partly adapted", "as trained")
REASONS = (
    "the rows",  # adapted: the change that the rows ask for is believed
    "asked",  # the policy says so
    "few rows",  # partly adapted: the rows leave more open
    "rehearsal",  # partly adapted or as trained: estimates at unseen sites were off
    "check",  # as trained: the assumption fails here
    "nothing changed",
    "cannot tell",
)
MARKS = {"good": "ok", "unknown": "?", "care": "!", "stop": "STOP"}


@dataclass(frozen=True)
class Finding:
    """One check: a number, what it is held against, a sentence for a reader and what to do."""

    name: str
    severity: str  # one of SEVERITIES
    value: float | None
    threshold: float | None
    sentence: str
    advice: str = ""
    p_value: float | None = None  # of this check alone, where it is a test
    details: dict[str, Any] = field(default_factory=dict, repr=False)  # further plain numbers

    def __post_init__(self) -> None:
        assert self.severity in SEVERITIES, self.severity

    def __str__(self) -> str:
        advice = f" {self.advice}" if self.advice and self.severity != "good" else ""
        return f"[{MARKS[self.severity]:^4}] {self.name}: {self.sentence}{advice}"


@dataclass(frozen=True)
class Grounds:
    """What an outcome is computed from.

    Attributes
    ----------
    policy : str
        "auto", "as trained" or "rows", as `adapt` was told.
    as_trained, rows_alone, here : tuple of float
        P(Y) by the model as trained, by maximum likelihood from the rows, and as it is predicted here; (K,) each.
    believed : float
        The share, from 0 to 1, of the change asked for by the rows alone that predictions here make.
    change : float
        Mean change of the predictions, in log-odds, that the rows alone ask for.
    half_width : float
        Half the 95% interval of P(Y) from the rows alone, the widest class's.
    by_chance : bool
        Whether that interval holds the prevalence as trained.
    without_rehearsal : float
        The share that would be believed had the rehearsal not lowered it.
    slope : float
        Factor on log f in predictions, from the rehearsal; below one probabilities are less extreme.
    failed : str or None
        The check of the assumption that failed beyond what rehearsed sites show, where one did.
    """

    policy: str
    as_trained: tuple[float, ...]
    rows_alone: tuple[float, ...]
    here: tuple[float, ...]
    believed: float = 1.0
    change: float = 0.0
    half_width: float = 0.0
    by_chance: bool = False
    without_rehearsal: float = 1.0
    slope: float = 1.0
    failed: str | None = None


class Outcome(str):
    """ "adapted", "partly adapted" or "as trained", with why, what it risks, and the numbers behind it.

    Attributes
    ----------
    reason : str
        One of `REASONS`.
    sentence : str
        What was done and why, in plain words.
    risk : str
        What to expect of it: harm, no gain, or a gain.
    grounds : Grounds
        What it was computed from.
    """

    reason: str
    sentence: str
    risk: str
    grounds: Grounds

    def __new__(cls, word: str, reason: str, sentence: str, risk: str, grounds: Grounds) -> "Outcome":
        """Put the parts together."""
        assert word in WORDS, word
        assert reason in REASONS, reason
        made = super().__new__(cls, word)
        made.reason, made.sentence, made.risk, made.grounds = reason, sentence, risk, grounds
        return made

    def __getnewargs__(self) -> tuple[Any, ...]:
        return str(self), self.reason, self.sentence, self.risk, self.grounds

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and text, for JSON."""
        numbers = {
            name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self.grounds).items()
        }
        return {"word": str(self), "reason": self.reason, "sentence": self.sentence, "risk": self.risk, **numbers}


@dataclass(frozen=True)
class Diagnosis:
    """Every finding, the outcome where a model was adapted, and the verdict.

    With an outcome the verdict follows from it (`sitewise.diagnosis.outcome`); of arrays it is that of the gravest
    finding: "do not adapt" where one says stop, "care" where one asks for care, "adapt" else.
    """

    verdict: str
    findings: tuple[Finding, ...]
    outcome: "Outcome | None" = None

    @property
    def sentence(self) -> str:
        """What was done and why; of arrays, what the verdict means."""
        return SENTENCES[self.verdict] if self.outcome is None else self.outcome.sentence

    def __getitem__(self, name: str) -> Finding:
        for finding in self.findings:
            if finding.name == name:
                return finding
        raise KeyError(f"no finding is called {name!r}; there are {', '.join(f.name for f in self.findings)}")

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and text, for JSON and the report."""
        return {
            "verdict": self.verdict,
            "sentence": self.sentence,
            "outcome": None if self.outcome is None else self.outcome.to_dict(),
            "findings": [asdict(finding) for finding in self.findings],
        }

    def __str__(self) -> str:
        return "\n".join([*self._head, *map(str, self.findings)])

    @property
    def _head(self) -> list[str]:
        risk = [] if self.outcome is None else [self.outcome.risk]
        return [self.sentence, *risk, f"verdict: {self.verdict}"]

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(f.severity)}</td><td>{escape(f.name)}</td>"
            f"<td>{escape(f.sentence)} {escape(f.advice if f.severity != 'good' else '')}</td></tr>"
            for f in self.findings
        )
        return f"{''.join(f'<p>{escape(line)}</p>' for line in self._head)}<table>{rows}</table>"


def conclude(findings: Iterable[Finding]) -> Diagnosis:
    """The verdict of the gravest finding."""
    found = tuple(findings)
    gravest = max((SEVERITIES.index(finding.severity) for finding in found), default=0)
    return Diagnosis(VERDICTS[SEVERITIES[gravest]], found)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values: the chance of any false alarm among all tests is at most the level."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, (len(p_values) - rank) * p_values[i])
        adjusted[i] = min(1.0, largest)
    return adjusted
