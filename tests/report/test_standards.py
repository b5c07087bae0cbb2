"""The report as public standards: a card that is valid under its schema, a checklist that claims nothing unknown."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import xmlschema

import sitewise as sw
from sitewise.datasets.simulated import SimulatedFamily
from sitewise.estimator.at_site.reporting import report_content
from sitewise.report.standards import (
    NAMESPACE,
    TO_FILL_IN,
    applied_model_card,
    change_control,
    checklist_markdown,
    tripod_checklist,
)

SIGNATURES = "http://www.w3.org/2000/09/xmldsig#"


@pytest.fixture(scope="module")
def schema(tmp_path_factory):
    """CHAI's schema; the signature that it imports from elsewhere may be anything here."""
    folder = tmp_path_factory.mktemp("schema")
    signature = folder / "signature.xsd"
    signature.write_text(
        f'<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" targetNamespace="{SIGNATURES}">'
        '<xs:element name="Signature"/></xs:schema>'
    )
    text = (Path(__file__).parent / "standards/chai/schema.xsd").read_text()
    own = folder / "schema.xsd"
    own.write_text(text.replace("http://www.w3.org/TR/xmldsig-core/xmldsig-core-schema.xsd", signature.name))
    return xmlschema.XMLSchema(own)


@pytest.fixture(scope="module")
def content():
    family = SimulatedFamily(signal=2.0, levels=(2,))
    sites = [family.site(200, prevalence=[1 - p, p], name=str(p), seed=i) for i, p in enumerate((0.3, 0.5))]
    proba = np.concatenate([sw.adjust(s.log_ratio, np.log([0.6, 0.4])) for s in sites])
    Z = pd.concat([s.Z for s in sites], ignore_index=True)
    y, domain = np.concatenate([s.y for s in sites]), np.repeat(["a <&>", "b"], 200)
    model = sw.PrevalenceAdjuster(rehearsal=None).fit(proba, y, sample_domain=domain, sample_confounder=Z)
    new = family.site(150, prevalence=[0.8, 0.2], missing=0.1, seed=5)
    here = model.adapt(sw.adjust(new.log_ratio, np.log([0.6, 0.4])), new.Z)
    return report_content(here, "West <&> \x07General", 0.95, made="2026-01-01")


def test_the_card_is_valid_and_holds_what_the_author_says(schema, content):
    text = applied_model_card(content, {"developer": "Us & them", "funding": "none"})
    schema.validate(text)
    root = ElementTree.fromstring(text)
    assert root.findtext(f".//{{{NAMESPACE}}}ModelDeveloper") == "Us & them"
    assert root.findtext(f".//{{{NAMESPACE}}}StakeholdersConsulted") == TO_FILL_IN
    labels = [node.text for node in root.iter(f"{{{NAMESPACE}}}Label")]
    assert "accuracy" in labels
    assert any("group0" in label for label in labels)


def test_a_report_without_performance_and_diagnosis_has_a_valid_card(schema, content):
    bare = content | {"performance": None, "diagnosis": None}
    text = applied_model_card(bare)
    schema.validate(text)
    labels = [node.text for node in ElementTree.fromstring(text).iter(f"{{{NAMESPACE}}}Label")]
    assert "accuracy" not in labels


def test_a_field_nobody_knows_is_refused(content):
    with pytest.raises(ValueError, match="the author's field 'founding' is not known; did you mean 'funding'"):
        applied_model_card(content, {"founding": "x"})


def test_the_checklist_has_every_item_once_and_leaves_the_authors_to_them(content):
    items = tripod_checklist(content)
    assert [line["item"] for line in items] == [str(number) for number in range(1, 28)]
    filled = {line["item"]: line["filled"] for line in items}
    assert filled["17"] is None
    assert "accuracy" in filled["23"]
    assert "a <&> (200 rows)" in filled["5"]
    text = checklist_markdown(items)
    assert text.count("\n|") == 29
    assert TO_FILL_IN in text


def test_change_control_has_bounds_fixed_beforehand(content):
    adapt, train, stop = change_control(content, alarm_level=0.02)
    assert adapt["threshold"] == [content["prevalence"]["low"][1], content["prevalence"]["high"][1]]
    assert train["threshold"] == 0.02
    assert [line["action"].split()[0] for line in (adapt, train, stop)] == ["adapt", "train", "stop"]
