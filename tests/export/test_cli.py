"""The command: help without heavy imports, exit codes, JSON as the last line of stdout."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from lilicorr.export.cli import main


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from lilicorr.export.cli import main\n"
        "try: main(['build', '--help'])\nexcept SystemExit: pass\n"
        "print(sorted({'torch', 'transformers', 'onnx', 'onnxruntime', 'numpy'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"
    assert "--max-context" in out


def test_help_names_every_supported_target():
    from lilicorr.export.architectures import PROVEN

    text = " ".join(run("build", "--help").stdout.split())
    assert f"Targets: {', '.join(PROVEN)}." in text


def test_build_refuses_a_missing_folder_with_exit_code_one(tmp_path):
    result = run("build", "--target", tmp_path / "t", "--drafter", tmp_path / "d", "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert "error: drafter" in result.stderr
    assert "hint:" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("arguments", [["build"], ["plan", "--precision", "int3"], ["check"], ["nonsense"]])
def test_usage_errors_exit_with_two(arguments):
    assert run(*arguments).exit_code == 2


def test_plan_json(tiny_target, tiny_drafter):
    result = run("plan", "--target", tiny_target, "--drafter", tiny_drafter, "--block-size", 3, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["block_size"] == 3


def test_inspect_both_ways(tiny_bundle):
    assert "5 of 5 trained" in run("inspect", tiny_bundle).stdout
    assert json.loads(run("inspect", tiny_bundle, "--json").stdout)["manifest"]["precision"] == "fp32"


def test_inspect_refuses_another_folder(tmp_path):
    result = run("inspect", tmp_path)
    assert result.exit_code == 1
    assert "is not a bundle" in result.stderr


def test_check_passes_then_inspect_shows_it(own_bundle):
    arguments = ["check", own_bundle, "--limit", 1, "--max-new-tokens", 6, "--threads", 1]
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["passed"]
    assert "PASSED on 1 prompts" in result.stderr
    assert "speculative = plain" in run("inspect", own_bundle).stdout


def test_check_that_misses_a_budget_exits_with_three(own_bundle, monkeypatch):
    from lilicorr.export import budgets

    strict = budgets.Budget(**{**vars(budgets.BUDGETS["fp32"]), "logits_abs": 0.0})
    monkeypatch.setitem(budgets.BUDGETS, "fp32", strict)
    result = run("check", own_bundle, "--limit", 1, "--max-new-tokens", 6, "--threads", 1)
    assert result.exit_code == 3
    assert "FAILED on 1 prompts: target.logits max abs" in result.stdout
