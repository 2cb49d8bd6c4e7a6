"""parity.json and parity.html: the report of a check, written whole or not at all, and its table for the terminal."""

from __future__ import annotations

import html
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

from lilicorr.export.tables import table

JSON_NAME, HTML_NAME = "parity.json", "parity.html"
COLUMNS = ("rung", "measure", "value", "budget", "verdict")
_STYLE = """
body { font: 15px/1.4 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; color: #222 }
table { border-collapse: collapse; width: 100% } td, th { padding: .2rem .6rem; text-align: left }
tr { border-bottom: 1px solid #ddd } .ok { color: #176b2c } .missed { color: #b00020; font-weight: bold }
.bar { background: #eee; width: 12rem; height: .7rem } .bar div { background: #4a7bb7; height: 100% }
.bar .over { background: #b00020 }
"""


def write_report(report: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Write both files into `folder`, where a reader sees the old file or the new one; return what parity.json holds.

    Numbers that JSON cannot hold (NaN, infinity) become null.
    """
    report = _finite(report)
    for name, text in ((JSON_NAME, json.dumps(report, indent=1) + "\n"), (HTML_NAME, html_from_report(report))):
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{name}-")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)  # mkstemp makes 0600
        os.replace(temporary, folder / name)
    return report


def text_from_report(report: dict[str, Any]) -> str:
    """The summary as a table, one line of verdict, and the commands that look into a failure."""
    rows = [[row[column] for column in COLUMNS] for row in report["summary"]]
    commands = "".join(f"\n  {command}" for command in report.get("bisect", ()))
    hint = (
        f"\n\nhint: find the layer (Polygraphy; every layer against unfused ONNX Runtime):{commands}"
        if commands
        else ""
    )
    return f"{table(COLUMNS, rows)}\n\n{_verdict(report)}{hint}"


def html_from_report(report: dict[str, Any]) -> str:
    """One self-contained page: the verdict, and every measure with a bar of its share of the budget."""
    rows = "\n".join(_html_row(row) for row in report["summary"])
    head = "".join(f"<th>{name}</th>" for name in (*COLUMNS, "share of budget"))
    facts = f"{report['precision']} on {report['backend']} against {report['reference']}, {report['created']}"
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>Parity report</title><style>{_STYLE}</style>\n'
        f"<h1>Parity report</h1>\n<p>{html.escape(facts)}</p>\n<p><b>{html.escape(_verdict(report))}</b></p>\n"
        f"<table><tr>{head}</tr>\n{rows}\n</table></html>\n"
    )


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _verdict(report: dict[str, Any]) -> str:
    missed = [row["measure"] for row in report["summary"] if row["verdict"] == "MISSED"]
    prompts = f"{len(report['prompts'])} prompts"
    return f"PASSED on {prompts}" if report["passed"] else f"FAILED on {prompts}: {', '.join(missed)}"


def _html_row(row: dict[str, str]) -> str:
    cells = "".join(f"<td>{html.escape(row[column])}</td>" for column in COLUMNS[:-1])
    style = "missed" if row["verdict"] == "MISSED" else "ok"
    return f'<tr>{cells}<td class="{style}">{row["verdict"]}</td><td>{_bar(row)}</td></tr>'


def _bar(row: dict[str, str]) -> str:
    """How much of a maximum is used up; minima have no meaningful share and get no bar."""
    if not row["budget"].startswith("≤") or float(row["budget"][1:]) == 0:
        return ""
    share = float(row["value"]) / float(row["budget"][1:])
    style = ' class="over"' if share > 1 else ""
    return f'<div class="bar"><div{style} style="width: {min(share, 1) * 100:.0f}%"></div></div>'
