"""A site's report in the form of public standards: the CHAI applied model card, TRIPOD+AI, and change control.

All of them are made from the content of the report. Fields that only the author knows are listed in `AUTHOR_FIELDS`,
and contain `TO_FILL_IN` or a default until the author gives them.
"""

import json
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

from sitewise.arrays import did_you_mean
from sitewise.evaluation import metric_name
from sitewise.report.page.content import Content
from sitewise.report.wording import by_labels, known_labels, rows_here

NAMESPACE = "https://mc.chai.org/v0.2/schema.xsd"
TO_FILL_IN = "To be filled in by the author."
ALARMS_TO_RETRAIN = 2  # consecutive windows with an alarm

AUTHOR_FIELDS = (
    "model_name",
    "developer",
    "contact",
    "release_stage",
    "availability",
    "intended_use",
    "users",
    "population",
    "out_of_scope",
    "biases",
    "clinical_risk",
    "funding",
    "stakeholders",
    "publications",
    "consent",
    "bibliography",
)


def check_author(author: Mapping[str, str] | None) -> dict[str, str]:
    """Return the author's fields as texts; raise ValueError for an unknown name."""
    given = dict(author or {})
    for name in given:
        if name not in AUTHOR_FIELDS:
            meant = did_you_mean(name, list(AUTHOR_FIELDS))
            raise ValueError(f"the author's field {name!r} is not known{meant}; there are {', '.join(AUTHOR_FIELDS)}")
    return {name: str(value) for name, value in given.items()}


def applied_model_card(content: Content, author: Mapping[str, str] | None = None) -> str:
    """The CHAI applied model card of a site's report, as XML that is valid under its schema (version 0.2)."""
    own = check_author(author)
    facts = _facts(content)

    def said(name: str) -> str:
        return own.get(name, TO_FILL_IN)

    metrics = (content["performance"] or {}).get("metrics", {})
    findings = (content["diagnosis"] or {}).get("findings", [])
    prevalence = content["prevalence"]
    here = [
        (f"prevalence of {name} here", {"estimate": e, "low": low, "high": high})
        for name, e, low, high in zip(
            content["classes"], prevalence["estimate"], prevalence["low"], prevalence["high"], strict=True
        )
    ]
    labels = known_labels(content)
    testing = f"{rows_here(content['rows'], labels)}, of {content['site']}"
    process = (
        f"Expected from the adapted posterior of P(y|x,z), {by_labels(labels)}; intervals include the uncertainty of "
        "the prevalence, of the calibration and of the labels, and assume that P(x|y,z) is that of the training sites."
    )
    tree: dict[str, Any] = {
        "BasicInfo": {
            "ModelName": own.get("model_name", f"sitewise model at {content['site']}"),
            "ModelDeveloper": said("developer"),
            "DeveloperContact": said("contact"),
        },
        "ReleaseInfo": {
            "ReleaseStage": said("release_stage"),
            "ReleaseDate": content["made"] or TO_FILL_IN,
            "ReleaseVersion": f"sitewise {facts.get('sitewise', 'unknown version')}",
            "GlobalAvailability": said("availability"),
        },
        "ModelSummary": {
            "Summary": f"{content['outcome']['sentence']} Verdict: {content['verdict']}.",
            "Keywords": [("Keyword", "prevalence adjustment"), ("Keyword", "adaptation without labels")],
        },
        "UsesAndDirections": {
            "IntendedUseAndWorkflow": said("intended_use"),
            "PrimaryIntendedUsers": said("users"),
            "HowToUse": _rule(content),
            "TargetedPatientPopulation": said("population"),
            "CautionedOutOfScopeSettings": own.get(
                "out_of_scope", "Sites where P(x|y,z) differs from that of the training sites."
            ),
        },
        "Warnings": {
            "KnownRisksAndLimitations": _sentences(findings) or "No check called for care.",
            "KnownBiasesOrEthicalConsiderations": said("biases"),
            "ClinicalRiskLevel": said("clinical_risk"),
        },
        "TrustIngredients": {
            "AISystemFacts": {
                "OutcomesAndOutputs": f"Probabilities of {', '.join(content['classes'])}.",
                "ModelType": f"Classifier adapted to one site; prevalence: {facts.get('model of the prevalence', '')}.",
                "InputDataSource": testing,
                "OutputAndInputDataTypes": f"Inputs x with confounders z ({_confounders(content)}); outputs P(y|x,z).",
                "DevelopmentDataCharacterization": _development(content, facts),
                "BiasMitigationApproaches": "The prevalence given z is estimated at the site and replaces that of "
                "the training sites.",
                "OngoingMaintenance": _change_words(),
            },
            "TransparencyInformation": {
                "FundingSource": said("funding"),
                "StakeholdersConsulted": said("stakeholders"),
            },
        },
        "KeyMetrics": {
            "UsefulnessUsabilityEfficacy": _key_metric(
                "Decisions that are right at this site",
                [(metric_name(name), value) for name, value in metrics.items()],
                testing,
                process,
            ),
            "FairnessEquity": _key_metric(
                "Like performance in all groups of rows",
                [
                    (f"{metric_name(name)}, {group['column']} = {group['name']}", value)
                    for group in content["subgroups"]
                    for name, value in group["metrics"].items()
                ],
                testing,
                process,
            ),
            "SafetyReliability": _key_metric(
                "Adaptation that is safe here",
                [*here, *((f"{finding['name']}: {finding['severity']}", _number(finding)) for finding in findings)],
                testing,
                "Checks of the adaptation, each with its number and advice.",
            ),
        },
        "Resources": {
            "PeerReviewedPublications": said("publications"),
            "PatientConsentOrDisclosure": said("consent"),
        },
        "Bibliography": own.get("bibliography", TO_FILL_IN),
    }
    ElementTree.register_namespace("mc", NAMESPACE)
    root = ElementTree.Element(f"{{{NAMESPACE}}}AppliedModelCard")
    _put(root, tree)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def tripod_checklist(content: Content) -> list[dict[str, Any]]:
    """List the 27 items of TRIPOD+AI (BMJ 2024;385:e078378), with the text that the software can fill in for each.

    Parameters
    ----------
    content : dict
        The content of a site's report.

    Returns
    -------
    list of dict
        One entry for each item: `item` (its number), `section`, `subject`, and `filled`, the text or None if the author
        has to fill it in.
    """
    facts, performance = _facts(content), content["performance"]
    labels = known_labels(content)
    sites = content["prevalence"].get("sites") or []
    measures = None
    if performance:
        shown = [
            f"{metric_name(name)} {value['estimate']:.3f} ({value['low']:.3f} to {value['high']:.3f})"
            for name, value in performance["metrics"].items()
            if value["estimate"] is not None
        ]
        measures = f"Expected {by_labels(labels)}, {content['level']:.0%} intervals: {'; '.join(shown)}."
    known: dict[str, str | None] = {
        "5": _development(content, facts),
        "6": f"Rows of {content['site']}: {content['rows']:,}.",
        "8": f"The class, one of {', '.join(content['classes'])}.",
        "9": f"Confounders z: {_confounders(content)}.",
        "10": f"{facts.get('rows', '?')} labeled training rows, {rows_here(content['rows'], labels)} here.",
        "11": _missing(content),
        "12": f"Calibration: {facts.get('calibration', '?')}. Prevalence: {facts.get('model of the prevalence', '?')}. "
        f"Outcome here: {content['outcome']['word']}.",
        "15": f"Probabilities; {_rule(content)}",
        "16": f"Prevalence in training and here: {_prevalences(content)}.",
        "18": f"Software: {', '.join(f'{k} {v}' for k, v in facts.items() if k in ('sitewise', 'torch', 'numpy'))}. "
        f"Fingerprint of the training data: {facts.get('fingerprint of the data', '?')}.",
        "20": f"{content['rows']:,} rows here; {len(sites) or facts.get('sites', '?')} training sites.",
        "22": "The saved folder holds the whole model; its card names the files.",
        "23": measures,
        "24": f"Adapted to this site without retraining. Prevalence in training and here: {_prevalences(content)}.",
        "26": _sentences((content["diagnosis"] or {}).get("findings", [])) or None,
    }
    return [
        {"item": item, "section": section, "subject": subject, "filled": known.get(item)}
        for item, section, subject in TRIPOD
    ]


def checklist_markdown(items: list[dict[str, Any]]) -> str:
    """The checklist as a table in Markdown."""

    def cell(text: str) -> str:
        return " ".join(text.split()).replace("|", "\\|")

    lines = ["# TRIPOD+AI checklist", "", "| item | section | subject | what is known |", "|---|---|---|---|"]
    for line in items:
        known = TO_FILL_IN if line["filled"] is None else line["filled"]
        lines.append(f"| {line['item']} | {line['section']} | {line['subject']} | {cell(known)} |")
    return "\n".join(lines) + "\n"


def change_control(content: Content, alarm_level: float = 0.01) -> list[dict[str, Any]]:
    """List the quantities to monitor after release, each with its threshold, its rule and the action that follows.

    `alarm_level` is the level of the stability check in `monitor`. Each entry has the keys `trigger`, `watch`,
    `threshold`, `rule` and `action`.
    """
    focus = content["focus"][0]
    low, high = content["prevalence"]["low"][focus], content["prevalence"]["high"][focus]
    return [
        {
            "trigger": "prevalence",
            "watch": f"P({content['classes'][focus]}) of a window by `monitor`",
            "threshold": [low, high],
            "rule": "the window's interval lies outside of these bounds",
            "action": "adapt again",
        },
        {
            "trigger": "stability",
            "watch": "the p-value of a window's stability check by `monitor`",
            "threshold": alarm_level,
            "rule": f"an alarm in {ALARMS_TO_RETRAIN} windows in a row",
            "action": "train again",
        },
        {
            "trigger": "verdict",
            "watch": "the verdict of `diagnose` after adapting again",
            "threshold": "do not adapt",
            "rule": "the verdict is this one",
            "action": "stop using the adapted predictions",
        },
    ]


TRIPOD = (
    ("1", "Title", "study named as developing or evaluating a prediction model, with population and outcome"),
    ("2", "Abstract", "structured abstract"),
    ("3", "Introduction", "health context, target population, existing models, known inequalities"),
    ("4", "Introduction", "objectives"),
    ("5", "Methods", "sources of data, dates, representativeness"),
    ("6", "Methods", "participants: setting, eligibility, treatments"),
    ("7", "Methods", "data preparation, alike in all groups"),
    ("8", "Methods", "outcome: definition and assessment"),
    ("9", "Methods", "predictors: choice, definition, measurement"),
    ("10", "Methods", "sample size"),
    ("11", "Methods", "missing data"),
    ("12", "Methods", "analysis: model, tuning, validation, measures, heterogeneity, recalibration"),
    ("13", "Methods", "class imbalance"),
    ("14", "Methods", "fairness"),
    ("15", "Methods", "what the model gives out, and thresholds"),
    ("16", "Methods", "differences between development and evaluation data"),
    ("17", "Methods", "ethical approval"),
    ("18", "Open science", "funding, interests, protocol, registration, data and code"),
    ("19", "Involvement", "patients and public"),
    ("20", "Results", "participants: numbers, characteristics, comparison with development"),
    ("21", "Results", "numbers of participants and events in each analysis"),
    ("22", "Results", "full model specification"),
    ("23", "Results", "performance with intervals, by group and site"),
    ("24", "Results", "updating of the model"),
    ("25", "Discussion", "interpretation"),
    ("26", "Discussion", "limitations"),
    ("27", "Discussion", "use in practice and next steps"),
)


def _put(parent: ElementTree.Element, tree: Any) -> None:
    for name, value in tree.items() if isinstance(tree, Mapping) else tree:
        child = ElementTree.SubElement(parent, f"{{{NAMESPACE}}}{name}")
        if isinstance(value, Mapping | list):
            _put(child, value)
        else:
            child.text = "".join(letter for letter in str(value) if letter.isprintable() or letter in "\n\t")


def _key_metric(goal: str, results: list[tuple[str, Any]], data: str, process: str) -> dict[str, Any]:
    shown = results or [("not computed", None)]
    return {
        "MetricGoal": goal,
        "Results": [
            ("MetricResult", {"Label": label, "ValueJson": json.dumps(value, allow_nan=False)})
            for label, value in shown
        ],
        "Interpretation": "Estimates with their intervals; see the site's report.",
        "TestType": "internal, at the site, expected values",
        "TestingDataDescription": data,
        "ValidationProcessAndJustification": process,
    }


def _facts(content: Content) -> dict[str, Any]:
    """The facts of the report by name. A name that occurs for the site and for training has the value of training."""
    entries = [entry for part in content["done"] for entry in part["entries"]]
    return {entry["name"]: entry["value"] for entry in entries}


def _number(finding: Mapping[str, Any]) -> Any:
    return {name: finding[name] for name in ("value", "p_value") if finding.get(name) is not None}


def _sentences(findings: list[Mapping[str, Any]]) -> str:
    grave = [finding for finding in findings if finding["severity"] != "good"]
    return " ".join(str(finding["sentence"]) for finding in grave)


def _rule(content: Content) -> str:
    if content["threshold"] is None:
        return "the most probable class is predicted."
    return f"{content['classes'][1]} is predicted from a probability of {content['threshold']:.4g}."


def _confounders(content: Content) -> str:
    return ", ".join(str(profile["name"]) for profile in content["confounders"]) or "none"


def _development(content: Content, facts: Mapping[str, Any]) -> str:
    sites = content["prevalence"].get("sites") or []
    named = "; ".join(f"{site['name']} ({site['rows']:,} rows)" for site in sites)
    return f"{facts.get('rows', '?')} labeled rows of {facts.get('sites', '?')} site(s){': ' if named else ''}{named}."


def _missing(content: Content) -> str:
    gaps = [f"{profile['name']} {profile['rows_missing']:,}" for profile in content["confounders"]]
    return f"Rows here that lack each confounder: {', '.join(gaps) or 'none'}; what is missing is averaged out."


def _prevalences(content: Content) -> str:
    pairs = zip(content["classes"], content["prevalence"]["training"], content["prevalence"]["estimate"], strict=True)
    return "; ".join(f"{name} {before:.3f} and {after:.3f}" for name, before, after in pairs)


def _change_words() -> str:
    return "Watched by `sitewise monitor`; when to adapt again, to train again and to stop is fixed beforehand."
