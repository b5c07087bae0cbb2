"""Whether the rows speak against a prevalence that is known from elsewhere."""

from sitewise.adaptation import PrevalenceEstimate
from sitewise.adaptation.known import CONTRADICTED, contradiction_sentence
from sitewise.diagnosis.result import Finding

AGREE = "The rows do not speak against the known prevalence (p = {p:.2g})."
ADVICE = "Check whose prevalence it is, or label some rows here: labels tell which of the two is wrong."


def check_known(estimate: PrevalenceEstimate) -> tuple[Finding, ...]:
    """The finding, where a prevalence was told."""
    posterior = estimate._fit.posterior
    if posterior is None or posterior.against is None:
        return ()
    against = posterior.against
    details = {"without": against.without[0].tolist(), "known": against.share.tolist(), "of": against.name}
    contradicted = against.p_value < CONTRADICTED
    sentence = f"{contradiction_sentence(against)}." if contradicted else AGREE.format(p=against.p_value)
    severity = "care" if contradicted else "good"
    p_value = against.p_value
    return (Finding("known prevalence", severity, p_value, CONTRADICTED, sentence, ADVICE, p_value, details),)
