"""The result of a diagnosis: findings with numbers and advice, the outcome, and one verdict."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

SEVERITIES = ("good", "unknown", "care", "stop")  # in increasing order
VERDICTS = {"good": "adapt", "unknown": "adapt", "care": "care", "stop": "do not adapt"}
SENTENCES = {
    "adapt": "No check found a problem with adapting here.",
    "care": "Look at the marked findings before relying on adapted numbers.",
    "do not adapt": "Adapting here is not supported by the data.",
}
WORDS = ("adapted", "partly adapted", "as trained")
REASONS = (
    "the rows",  # adapted: the change that the rows imply is applied
    "asked",  # the policy requires it
    "few rows",  # partly adapted: the rows are not informative enough
    "rehearsal",  # partly adapted or as trained: estimates at left-out training sites had errors
    "check",  # as trained: a check of the assumption failed here
    "nothing changed",
    "cannot tell",
)
MARKS = {"good": "ok", "unknown": "?", "care": "!", "stop": "STOP"}


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Parameters
    ----------
    name : str
        The name of the check.
    severity : {"good", "unknown", "care", "stop"}
        How serious the finding is. "unknown": the check was not possible.
    value : float or None
        The number that was compared with `threshold`, for example a p-value or a share of rows. None if there is no
        such number.
    threshold : float or None
        The limit with which `value` was compared.
    sentence : str
        The finding in words.
    advice : str
        Advice on what to do, if the finding is not good.
    p_value : float, optional
        The p-value of the check, if it is a test. It is not adjusted for the other checks.
    details : dict
        Further numbers of the check, by name.

    Examples
    --------
    >>> finding = here.diagnose()["stability"]
    >>> finding.severity, finding.sentence
    """

    name: str
    severity: str
    value: float | None
    threshold: float | None
    sentence: str
    advice: str = ""
    p_value: float | None = None
    details: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        assert self.severity in SEVERITIES, self.severity

    def __str__(self) -> str:
        advice = f" {self.advice}" if self.advice and self.severity != "good" else ""
        return f"[{MARKS[self.severity]:^4}] {self.name}: {self.sentence}{advice}"


@dataclass(frozen=True)
class Grounds:
    """The numbers from which an outcome is decided.

    Parameters
    ----------
    policy : {"auto", "as trained", "rows"}
        The policy of `adapt`.
    as_trained : tuple of float
        P(Y) of each class by the model as trained: the mean of its predictions for the site's rows at which f is
        identified (section 12 of docs/maths.md).
    rows_alone : tuple of float
        P(Y) of each class by the rows alone: the mean of the predictions with the maximum likelihood estimate of g, for
        the same rows.
    here : tuple of float
        P(Y) of each class by the adapted model: the mean of its predictions for all rows of the site.
    applied_share : float
        The share of the change: the rows alone suggest a change of the predictions, and this share of it was made, from
        0 to 1.
    change : float
        The size of the change of the predictions that the rows alone suggest: about the mean change in log-odds, for
        the class that changes most.
    half_width : float
        Half the width of the 95% interval of P(Y) by the rows alone, for the class with the widest interval.
    by_chance : bool
        Whether the interval of P(Y) by the rows alone contains P(Y) as trained, for every class.
    without_rehearsal : float
        The share of the change that would have been made if the rehearsal had found no errors of estimates. It is only
        computed with the policy "auto" and a share below 0.8; otherwise it is the share itself.
    slope : float
        The factor on log f in predictions, from the rehearsal. If it is below one, probabilities are less extreme.
    failed : str or None
        The name of the check of the assumption that failed: its finding is "stop", and the violation is larger than at
        every rehearsed site. None if no check failed.

    Examples
    --------
    >>> grounds = here.outcome.grounds
    >>> grounds.applied_share, grounds.change
    """

    policy: str
    as_trained: tuple[float, ...]
    rows_alone: tuple[float, ...]
    here: tuple[float, ...]
    applied_share: float = 1.0
    change: float = 0.0
    half_width: float = 0.0
    by_chance: bool = False
    without_rehearsal: float = 1.0
    slope: float = 1.0
    failed: str | None = None


class Outcome(str):
    """The outcome of an adaptation: "adapted", "partly adapted" or "as trained", with its reason and numbers.

    It is a string and can be compared with these words.

    Attributes
    ----------
    reason : str
        The reason: "the rows", "asked", "few rows", "rehearsal", "check", "nothing changed" or "cannot tell".
        docs/trust.md says what each of them means.
    sentence : str
        A sentence that says what was done and why.
    risk : str
        A sentence about the expected effect: harm, no gain, a gain, or unknown.
    grounds : Grounds
        The numbers from which the outcome was decided.

    Examples
    --------
    >>> here = model.adapt(X_new, sample_confounder=Z_new)
    >>> if here.outcome == "as trained":
    ...     print(here.outcome.sentence)
    """

    reason: str
    sentence: str
    risk: str
    grounds: Grounds

    def __new__(cls, word: str, reason: str, sentence: str, risk: str, grounds: Grounds) -> "Outcome":
        """Make the string and set its attributes."""
        assert word in WORDS, word
        assert reason in REASONS, reason
        made = super().__new__(cls, word)
        made.reason, made.sentence, made.risk, made.grounds = reason, sentence, risk, grounds
        return made

    def __getnewargs__(self) -> tuple[Any, ...]:
        return str(self), self.reason, self.sentence, self.risk, self.grounds

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain numbers and text for JSON.

        Returns
        -------
        dict
            The word, reason, sentence, risk and all numbers of `grounds`.
        """
        numbers = {
            name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self.grounds).items()
        }
        return {"word": str(self), "reason": self.reason, "sentence": self.sentence, "risk": self.risk, **numbers}


@dataclass(frozen=True)
class Diagnosis:
    """The findings of all checks, the outcome if a model was adapted, and the verdict.

    With an outcome, the verdict follows from the outcome and the findings. Without an outcome, the verdict is that of
    the most severe finding: "do not adapt" for stop, "care" for care, otherwise "adapt".

    Parameters
    ----------
    verdict : {"adapt", "care", "do not adapt"}
        The verdict.
    findings : tuple of Finding
        One finding for each check.
    outcome : Outcome, optional
        The outcome of the adaptation: what was done at the site and why.

    Examples
    --------
    >>> diagnosis = here.diagnose()
    >>> diagnosis.verdict
    'adapt'
    >>> diagnosis["calibration"].value
    """

    verdict: str
    findings: tuple[Finding, ...]
    outcome: "Outcome | None" = None

    @property
    def sentence(self) -> str:
        """A sentence that says what was done and why; without an outcome, the meaning of the verdict."""
        return SENTENCES[self.verdict] if self.outcome is None else self.outcome.sentence

    def __getitem__(self, name: str) -> Finding:
        for finding in self.findings:
            if finding.name == name:
                return finding
        raise KeyError(f"no finding is called {name!r}; there are {', '.join(f.name for f in self.findings)}")

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain numbers and text for JSON and the report.

        Returns
        -------
        dict
            The verdict, sentence, outcome and findings.
        """
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
    """Return a diagnosis with the verdict of the most severe finding."""
    checks = tuple(findings)
    worst = max((SEVERITIES.index(finding.severity) for finding in checks), default=0)
    return Diagnosis(VERDICTS[SEVERITIES[worst]], checks)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values: the probability of any false rejection is at most the level of the tests."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, (len(p_values) - rank) * p_values[i])
        adjusted[i] = min(1.0, largest)
    return adjusted
