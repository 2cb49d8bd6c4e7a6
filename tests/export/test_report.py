"""The report files: whole, valid JSON, and the verdict in words."""

import json

from lilicorr.export.report import html_from_report, text_from_report, write_report
from lilicorr.export.verdict import Measure


def report(*measures):
    return {
        "passed": all(measure.passed for measure in measures),
        "precision": "fp32",
        "backend": "b",
        "reference": "<torch>",
        "created": "now",
        "prompts": ["a", "b"],
        "summary": [measure.row() for measure in measures],
    }


GOOD = Measure(1, "logits max abs", 5e-4, 1e-3)
BAD = Measure(3, "same drafts", 0.5, 0.98, at_least=True)


def test_budgets_at_their_limit_pass():
    assert Measure(1, "x", 1.0, 1.0).passed
    assert Measure(1, "x", 1.0, 1.0, at_least=True).passed
    assert not Measure(1, "x", 1.1, 1.0).passed
    assert not Measure(1, "x", 0.9, 1.0, at_least=True).passed
    assert not Measure(1, "x", float("nan"), 1.0).passed
    assert Measure(1, "x", 99.0).passed


def test_text_names_what_missed():
    assert text_from_report(report(GOOD)).endswith("PASSED on 2 prompts")
    text = text_from_report(report(GOOD, BAD))
    assert text.endswith("FAILED on 2 prompts: same drafts")
    assert "≥ 0.98" in text


def test_html_is_self_contained_and_escaped():
    page = html_from_report(report(GOOD, BAD))
    assert "&lt;torch&gt;" in page
    assert "width: 50%" in page
    assert 'class="missed">MISSED' in page
    assert "http" not in page


def test_files_are_strict_json_and_replace_older_ones(tmp_path):
    (tmp_path / "parity.json").write_text("old")
    written = write_report(report(GOOD) | {"details": {"x": [float("nan"), float("inf"), 1.0]}}, tmp_path)
    assert written["details"] == {"x": [None, None, 1.0]}
    assert json.loads((tmp_path / "parity.json").read_text()) == written
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parity.html", "parity.json"]
