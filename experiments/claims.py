"""The claims of the paper, and a verdict on each from the records; `update_results.py` writes them into the pages.

A verdict is computed from the differences of positive-class F1 between methods, paired by seed. It is "yes" if every
95% interval is on the claimed side of zero, "no" if one is on the other side, and otherwise "not decided". For a claim
of the kind "level", it is "yes" if no interval is on the other side.
"""

from dataclasses import dataclass

PAPERS = ("ERM", "ERM^Z", "ERM^c", "IRM", "DANN", "CORAL", "GroupDRO")  # the baselines of the paper
OURS, PUBLISHED = "GPA", "GPA, published"
MOST_NAMED = 3
NOT_RUN = "not run yet"
METRIC = "positive_f1"


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, the experiment, site and draws that test it, and the methods to compare with.

    `kind` is "above" (GPA is better than every other method), "level" (no other method is significantly better),
    "below" (GPA is worse than every other method) or "falls" (without z, F1 falls by one to two percent: the interval
    of the change excludes zero and overlaps the range from -0.02 to -0.01). If `others` is None, the others are all
    methods except GPA, CoPA and references (methods that use information which is not available at a new site).
    """

    text: str
    experiment: str
    site: str
    draws: tuple[str, ...]
    kind: str
    others: tuple[str, ...] | None = PAPERS
    without_z: bool = False


DIGITS = ("1,000", "30,000")
WHOLE = ("whole site",)
CLAIMS = (
    Claim("GPA outperforms all the baselines", "cmnist_result", "paper's site", DIGITS, "above"),
    Claim(
        "better than every method that is not told what to drop", "cmnist_result", "paper's site", DIGITS, "above", None
    ),
    Claim("the same where P(y given z) is reversed (our site)", "cmnist_result", "flipped site", DIGITS, "above", None),
    Claim("adaptation outperforms ERM", "cmnist_result", "paper's site", DIGITS, "above", ("ERM",)),
    Claim("GPA is slightly worse than CoPA", "cmnist_result", "paper's site", DIGITS, "below", ("CoPA",)),
    Claim("without z F1 falls by 1 to 2%", "cmnist_short", "paper's site", DIGITS, "falls", (), without_z=True),
    Claim(
        "without z GPA still outperforms ERM", "cmnist_short", "paper's site", DIGITS, "above", ("ERM",), without_z=True
    ),
    Claim("y causes z: as good as or better than the baselines", "cmnist_y_cause", "paper's site", DIGITS, "level"),
    Claim("z causes y: as good as or better than the baselines", "cmnist_z_cause", "paper's site", DIGITS, "level"),
    Claim("skin lesions: on par with or better than the baselines", "isic64", "NY3", WHOLE, "level"),
    Claim("the same at a second site", "isic64", "BCN2", WHOLE, "level"),
    Claim("skin lesions: GPA outperforms CoPA", "isic64", "NY3", WHOLE, "above", ("CoPA",)),
    Claim("the same at a second site", "isic64", "BCN2", WHOLE, "above", ("CoPA",)),
    Claim("chest X-rays: GPA outperforms the baselines", "cxr64", "GUANGZHOU", WHOLE, "above"),
    Claim("the same on held-out patients of a training hospital", "cxr64", "NIH test", WHOLE, "above"),
    Claim("chest X-rays: GPA outperforms CoPA", "cxr64", "GUANGZHOU", WHOLE, "above", ("CoPA",)),
)


@dataclass(frozen=True)
class Lead:
    """The difference of a method to another method: the mean over seeds and its 95% interval; positive is better."""

    other: str
    mean: float
    low: float
    high: float

    def __str__(self):
        return f"{self.other.replace('*', chr(92) + '*')} {self.mean:+.3f} ({self.low:+.3f} to {self.high:+.3f})"


def judge(kind, leads):
    """Return the verdict on a claim as text, from the leads of a method over others."""
    if not leads:
        return NOT_RUN
    ranked = sorted(leads, key=lambda lead: lead.mean)
    behind = [lead for lead in ranked if lead.high < 0]
    ahead = [lead for lead in ranked if lead.low > 0]
    between = [lead for lead in ranked if lead not in behind and lead not in ahead]
    if kind == "falls":
        (lead,) = leads
        met = lead.low <= -0.01 and lead.high >= -0.02
        verdict = "no" if not met else "not decided" if between else "yes"
        return f"**{verdict}**: {lead.mean:+.3f} ({lead.low:+.3f} to {lead.high:+.3f})"
    if kind == "below":
        verdict = "yes" if len(behind) == len(leads) else "no" if ahead else "not decided"
        return f"**{verdict}**: {named(ranked)}"
    if behind:
        return f"**no**: behind {named(behind)}"
    if kind == "above" and between:
        return f"**not decided** against {named(between)}" + (f"; ahead of {len(ahead)} others" if ahead else "")
    if kind == "level" and between:
        return f"**yes**: none is significantly better; closest {named(between)}"
    return "**yes**: " + ("closest " if len(leads) > 1 else "") + named(ranked[:1])


def named(leads):
    """Return the first leads as text, and the number of further leads."""
    shown = "; ".join(map(str, leads[:MOST_NAMED]))
    return shown + (f" and {len(leads) - MOST_NAMED} more" if len(leads) > MOST_NAMED else "")


def leads_of(claim, method, draw, rows):
    """Return the leads of a method over the others of a claim, from a summary whose reference is this method."""
    here = rows[(rows["site"] == claim.site) & (rows["draw"] == draw) & (rows["metric"] == METRIC)]
    here = here[here["difference_low"].notna()]
    family = here["method"].str.startswith(("GPA", "CoPA"))
    if claim.others is None:
        here = here[~family & ~here["told"].astype(bool)]
    else:
        wanted = (method.replace("*", ""),) if claim.kind == "falls" else claim.others
        here = here[here["method"].isin(wanted)]
    return [
        Lead(row.method, -row.difference, -row.difference_high, -row.difference_low)
        for row in here.itertuples(index=False)
    ]


def claims_table(summary, experiment=None):
    """Return a Markdown table with a row for each claim and draw, with verdicts on GPA as published and on ours.

    If `experiment` is given, the table has the claims about this experiment only. `summary(experiment, reference)`
    must return the summary of an experiment's records with differences to the reference.
    """
    page = experiment is None
    head = ["claim", "rows of the new site", "GPA as published", "GPA, ours"] + ["where"] * page
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for claim in CLAIMS:
        if experiment not in (None, claim.experiment):
            continue
        for draw in claim.draws:
            cells = [claim.text.replace("*", "\\*"), f"{claim.site}, {draw}"]
            for method in (PUBLISHED, OURS):
                name = method.replace("GPA", "GPA*") if claim.without_z else method
                cells.append(judge(claim.kind, leads_of(claim, name, draw, summary(claim.experiment, name))))
            cells += [f"[{claim.experiment}](results/{claim.experiment}.md)"] * page
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
