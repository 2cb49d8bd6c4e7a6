"""`compare`, with ONNX Runtime in the engine's place: the calls are those of a round; a wrong graph is named with its bisection."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from lilicorr.export import backend_parity
from lilicorr.export.backend_parity import compare_graph, golden_runner, round_calls
from lilicorr.export.budgets import BUDGETS
from lilicorr.export.cli import main
from lilicorr.runtime.bundle import open_bundle
from tests.fixtures import TEXT

GRAPHS = ("drafter", "scorer", "target")


@pytest.fixture(scope="module")
def calls(tiny_bundle):
    return round_calls(open_bundle(tiny_bundle), TEXT)


@pytest.fixture(scope="module")
def wrong_scorer(tiny_bundle, tmp_path_factory):
    model = onnx.load(tiny_bundle / "scorer.onnx")
    next(node for node in model.graph.node if node.op_type == "Exp").op_type = "Abs"
    path = tmp_path_factory.mktemp("wrong") / "scorer.onnx"
    onnx.save(model, path)
    return path


def test_the_calls_are_those_of_a_round(calls):
    assert set(calls) == set(GRAPHS)
    assert calls["target"]["tokens"].shape == (1, 5)  # a block
    lengths = calls["target"]["lengths"]
    assert lengths[0] > 5
    assert np.any(calls["target"]["k_cache_0"][0, :, : lengths[0]] != 3.0)  # committed rows, not junk
    assert calls["drafter"]["count"].tolist() > [1]
    assert calls["scorer"]["candidate_ids"].shape == (1, 4, 4)


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_graph_equals_itself(tiny_bundle, calls, graph):
    path = tiny_bundle / f"{graph}.onnx"
    found = compare_graph(graph, golden_runner(path), golden_runner(path), calls[graph], BUDGETS["fp32"])
    assert {measure.value for measure in found} == {0}
    assert any(measure.budget for measure in found)
    assert all(measure.budget is None for measure in found if measure.rung == 2)


def test_a_wrong_graph_misses_its_budget(tiny_bundle, calls, wrong_scorer):
    golden = golden_runner(tiny_bundle / "scorer.onnx")
    found = compare_graph("scorer", golden, golden_runner(wrong_scorer), calls["scorer"], BUDGETS["fp32"])
    assert {measure.name for measure in found if not measure.passed} == {"scorer.start max abs", "scorer.pair max abs"}


@pytest.fixture
def no_tensorrt(monkeypatch, own_bundle, tmp_path):
    """Everything that needs TensorRT or a GPU, replaced; the engine folder is described as a real one."""
    engines = SimpleNamespace(
        backend="tensorrt-rtx", tensorrt_version="1.7.1", plugin=None, engines=dict.fromkeys(GRAPHS)
    )
    monkeypatch.delenv("POLYGRAPHY_USE_TENSORRT_RTX", raising=False)
    monkeypatch.setattr(backend_parity.os, "environ", {})
    monkeypatch.setattr(backend_parity, "read_engine_set", lambda folder: engines)
    monkeypatch.setattr(backend_parity, "import_tensorrt", lambda backend: SimpleNamespace(__version__="1.7.1"))
    monkeypatch.setattr(backend_parity, "here", lambda *facts: facts)
    monkeypatch.setattr(backend_parity, "open_engines", lambda *arguments: engines)

    def stand_in(paths):
        monkeypatch.setattr(backend_parity, "engine_runner", lambda *args: golden_runner(paths[args[2]]))

    return own_bundle, {graph: own_bundle / f"{graph}.onnx" for graph in GRAPHS}, stand_in


def compare(bundle, *options):
    return CliRunner().invoke(main, ["compare", str(bundle), "--engines", "e", "--prompt", TEXT, *options])


def test_true_engines_pass(no_tensorrt):
    bundle, paths, stand_in = no_tensorrt
    stand_in(paths)
    result = compare(bundle)
    assert result.exit_code == 0, result.output
    assert "PASSED" in result.stdout
    assert "target.logits max abs" in result.stdout


def test_a_wrong_engine_fails_with_the_command_that_bisects_it(no_tensorrt, wrong_scorer):
    bundle, paths, stand_in = no_tensorrt
    stand_in(paths | {"scorer": wrong_scorer})
    result = compare(bundle, "--json")
    assert result.exit_code == 3, result.output
    (command,) = json.loads(result.stdout)["bisect"]
    assert command in result.stderr
    script = bundle / "bisect/scorer/bisect.sh"
    assert command == f"sh {script}"
    assert "POLYGRAPHY_USE_TENSORRT_RTX=1" in script.read_text()
    open_bundle(bundle)  # the scripts are no part of it


def test_a_prompt_that_is_too_short_is_refused(no_tensorrt):
    bundle, paths, stand_in = no_tensorrt
    stand_in(paths)
    result = CliRunner().invoke(main, ["compare", str(bundle), "--engines", "e", "--prompt", "fox"])
    assert result.exit_code == 1
    assert "expected at least 8" in result.stderr


def test_a_folder_without_engines_is_refused(tiny_bundle, tmp_path):
    result = CliRunner().invoke(main, ["compare", str(tiny_bundle), "--engines", str(tmp_path)])
    assert result.exit_code == 1
    assert "is not an engine folder" in result.stderr
