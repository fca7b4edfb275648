"""The ledger of notebook 16 as a person uses it: its boxes hide rows, and without scripts all is
there."""

import pandas as pd
import pytest

from lib import ledger, paths
from lib.claims import entries

TEXTS = {entry.id: entry.texts for entry in entries.load()}


@pytest.fixture
def page(tmp_path):
    verdicts = pd.read_csv(paths.REFERENCE / "claims.csv")
    path = tmp_path / "ledger.html"
    html = ledger.page(verdicts).html
    path.write_text(f"<!doctype html><meta charset=utf-8>{html}", encoding="utf-8")
    return path.as_uri(), dict(zip(verdicts["id"], verdicts["verdict"], strict=True))


def shown(at):
    rows = at.page.locator("tr[data-texts]:visible")
    return {id.removeprefix("claim-") for id in rows.evaluate_all("rows => rows.map(r => r.id)")}


def test_boxes_choose_texts_and_verdicts(page, visit):
    address, verdicts = page
    at = visit(address)
    assert shown(at) == set(TEXTS)
    for text in ("S0", "S4"):
        at.page.uncheck(f"input[data-text={text}]")
    assert shown(at) == {id for id, texts in TEXTS.items() if "S1" in texts}
    at.page.uncheck("input[data-verdict=holds]")
    assert shown(at) == {
        id for id, texts in TEXTS.items() if "S1" in texts and verdicts[id] != "holds"
    }
    for text in ("S0", "S4"):
        at.page.check(f"input[data-text={text}]")
    at.page.check("input[data-verdict=holds]")
    assert shown(at) == set(TEXTS) and at.complaints == at.strangers == []


def test_a_heading_folds_its_verdict_and_a_claim_unfolds(page, visit):
    address, verdicts = page
    at = visit(address, java_script_enabled=False)
    assert shown(at) == set(TEXTS)
    assert not at.page.get_by_text("expected:").first.is_visible()
    at.page.locator("#claim-ALI-4 summary").click()
    assert at.page.locator("#claim-ALI-4").get_by_text("expected:").is_visible()
    at.page.locator("details[data-verdict=holds] > summary").click()
    assert shown(at) == {id for id in TEXTS if verdicts[id] != "holds"}
