"""The device check on a machine without a GPU, and its bookkeeping: limits, failures, what depends on what."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def check(monkeypatch):
    """The module, which is a script: its neighbours are on the path of the interpreter that runs it."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import device_check

    return device_check


def test_without_a_gpu_every_gpu_step_is_skipped_with_the_reason(check, tmp_path):
    if not check.why_no_gpu():
        pytest.skip("this machine has a GPU: run benchmarks/device_check.sh instead")
    environment = os.environ | {"OUT": str(tmp_path), "PYTHON": sys.executable}
    done = subprocess.run(
        ["sh", str(BENCHMARKS / "device_check.sh")], env=environment, capture_output=True, text=True, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "device_check.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [step.name for step in check.steps(tmp_path)]
    (doctor,) = (line for line in lines if line["step"] == "doctor")
    assert doctor["status"] == "ok"
    assert doctor["result"]["packages"]["lilicorr"]
    others = [line for line in lines if line["step"] != "doctor"]
    assert {line["status"] for line in others} == {"skipped"}
    assert {line["reason"] for line in others} == {check.why_no_gpu()}


def test_the_limits_fit_a_short_lease(check, tmp_path):
    assert check.TOTAL_S < 15 * 60
    names = [step.name for step in check.steps(tmp_path)]
    assert len(set(names)) == len(names)
    for index, step in enumerate(check.steps(tmp_path)):
        assert set(check.needed(step)) <= set(names[:index])  # only on earlier ones
        assert step.limit_s <= check.TOTAL_S / 2


def test_every_form_of_a_bundle_has_its_engines_compared_read_and_timed(check, tmp_path):
    names = [step.name for step in check.steps(tmp_path)]
    forms = ["fp16", "native", "int8", "int4", "bf16"]
    assert [name.removeprefix("texts-") for name in names if name.startswith("texts-")] == [*forms, "rtx"]
    assert [name for name in names if name.startswith("compare-")] == [
        f"compare-{form}" for form in ("fp16", "int8", "int4", "rtx")
    ]
    for form in forms:
        first = names.index(f"engine-{form}")
        assert names.index(f"texts-{form}") < names.index(f"bench-{form}") < first + 4


def test_every_script_and_every_option_of_a_step_exists(check, tmp_path):
    import importlib

    import click
    from device_steps import LIMITS, VARIANTS

    from lilicorr.export.cli import main as export

    for step in check.steps(tmp_path):
        program, *rest = step.command
        if program == "python":
            assert (ROOT / rest[0]).is_file()
            importlib.import_module(Path(rest[0]).stem).main.make_context(rest[0], list(rest[1:]))
        elif program in check.COMMANDS:
            group = importlib.import_module(f"lilicorr.{check.COMMANDS[program]}.cli").main
            group.commands[rest[0]].make_context(rest[0], list(rest[1:]), parent=click.Context(group))
    for options in VARIANTS.values():
        pair = ["--target", "T", "--drafter", "D", "--out", "O"]
        export.commands["build"].make_context("build", [*pair, *LIMITS, *options], parent=click.Context(export))


def run(check, tmp_path, code, limit=20.0):
    return check.run([sys.executable, "-c", code], limit, dict(os.environ), tmp_path / "log")


def test_a_result_is_the_last_line_when_it_is_json(check, tmp_path):
    line = run(check, tmp_path, "print('talk'); print('{\"a\": 1}')")
    assert (line["status"], line["result"]) == ("ok", {"a": 1})
    assert "talk" in (tmp_path / "log").read_text()
    assert "result" not in run(check, tmp_path, "print('talk')")


def test_a_failure_is_worded_by_our_own_error_line(check, tmp_path):
    code = (
        "import sys; print('error: no such card', file=sys.stderr); print('hint: none', file=sys.stderr); sys.exit(4)"
    )
    line = run(check, tmp_path, code)
    assert (line["status"], line["reason"]) == ("failed", "error: no such card")
    assert run(check, tmp_path, "raise SystemExit(3)")["reason"] == "no output"


def test_a_step_that_cannot_run_says_so_itself(check, tmp_path):
    line = run(check, tmp_path, 'print(\'{"skipped": "no nvcc"}\')')
    assert (line["status"], line["reason"]) == ("skipped", "no nvcc")


def test_a_step_beyond_its_limit_ends_with_its_children(check, tmp_path):
    child = f"import time; time.sleep(3); open({str(tmp_path / 'late')!r}, 'w')"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    line = run(check, tmp_path, code, limit=1.0)
    assert line["status"] == "timeout"
    assert line["seconds"] < 3
    assert not (tmp_path / "late").exists()


def test_references_take_values_from_earlier_results(check):
    step = check.Step("x", 1, ("python", "a.py", "{pair.target}", "--out", "{not-one"))
    assert check.needed(step) == ["pair"]
    lines = {"pair": {"status": "ok", "result": {"target": "T"}}}
    assert check.unmet(step, lines) == ""
    assert check.arguments(step, "py", lines) == ["py", "a.py", "T", "--out", "{not-one"]


def test_what_an_earlier_step_did_not_make_is_the_reason(check):
    step = check.Step("x", 1, ("python", "a.py", "{bundles.int4}"))
    assert check.unmet(step, {"bundles": {"status": "timeout"}}) == "the step bundles is timeout"
    made = {"fp16": "F", "failed": {"int4": "error: no block fits"}}
    assert check.unmet(step, {"bundles": {"status": "ok", "result": made}}) == "error: no block fits"
    assert check.unmet(step, {"bundles": {"status": "ok", "result": {}}}) == "the step bundles made no int4"


def test_only_what_is_missing_is_installed(check, monkeypatch):
    monkeypatch.setitem(check.PACKAGES, "install", {"json": "json", "no_such_module.of_anyone": "nothing>=1"})
    step = check.Step("install", 1, ("pip",))
    command = check.arguments(step, sys.executable, {})
    assert command[-1] == "nothing>=1"
    assert "json" not in command
    monkeypatch.setitem(check.PACKAGES, "install", {"json": "json"})
    assert check.arguments(step, sys.executable, {}) == []


def test_the_checkout_is_importable_without_being_installed(check, tmp_path):
    environment = {"PYTHONPATH": check.python_path(tmp_path), "PATH": os.environ["PATH"]}
    code = "import importlib.metadata as m, lilicorr.runtime.errors as e; print(m.version('lilicorr'), e.__file__)"
    done = subprocess.run([sys.executable, "-S", "-c", code], env=environment, capture_output=True, text=True)
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    assert done.stdout.split() == [version, str(tmp_path / "path/lilicorr/runtime/errors.py")], done.stderr


def test_requirements_are_those_of_the_project(check):
    """A bound that is raised in pyproject.toml is raised here."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for packages in check.PACKAGES.values():
        for requirement in packages.values():
            name = re.split(r"[<>=]", requirement)[0]
            if found := re.search(rf'"({name}[<>=][^";]*)[";]', project):
                assert requirement == found[1]
