"""Polygraphy takes our files unchanged, and its bisection finds the node that was altered (ONNX Runtime on both sides)."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from lilicorr.export.polygraphy_commands import bisect_commands, save_inputs

BIN = Path(sys.executable).parent
ENVIRONMENT = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    random = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("inputs") / "scorer.json"
    feeds = {
        "candidate_ids": random.integers(0, 300, (2, 4, 4)).astype(np.int32),
        "log_probs": -np.sort(random.random((2, 4, 4))).astype(np.float32),
        "hidden": random.standard_normal((2, 4, 32)).astype(np.float32),
        "anchor_row": random.standard_normal((2, 32)).astype(np.float32),
    }
    save_inputs(feeds, path)
    return path


def shell(command, folder):
    return subprocess.run(["sh", "-e", "-c", command], capture_output=True, text=True, cwd=folder, env=ENVIRONMENT)


def test_polygraphy_inspects_and_runs_the_scorer_with_its_function(tiny_bundle, inputs, tmp_path):
    done = shell(f"polygraphy inspect model {tiny_bundle}/scorer.onnx --show layers", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "GreedyWalk" in done.stdout
    run = f"polygraphy run {tiny_bundle}/scorer.onnx --onnxrt --load-inputs {inputs}"
    done = shell(f"{run} --save-outputs out.json && {run} --load-outputs out.json --atol 0 --rtol 0", tmp_path)
    assert done.returncode == 0, done.stdout
    assert "Pass Rate: 100.0" in done.stdout


def test_the_commands_name_backend_plugin_and_tolerance():
    graph, inputs, folder = Path("b/scorer.onnx"), Path("in.json"), Path("out dir")
    text = bisect_commands(graph, inputs, folder, backend="tensorrt", tolerance=0.01, plugin=Path("p.so"))
    record, merge, reduce = text.splitlines()[1:]
    assert "run b/scorer.onnx --onnxrt --load-inputs in.json" in record
    assert merge.endswith("-o 'out dir/layer-inputs.json'")
    assert "--check polygraphy run polygraphy_debug.onnx --trt " in reduce
    assert reduce.endswith("--atol 0.01 --rtol 0 --plugins p.so")
    assert "POLYGRAPHY_USE_TENSORRT_RTX" not in text
    assert "POLYGRAPHY_USE_TENSORRT_RTX=1" in bisect_commands(
        graph, inputs, folder, backend="tensorrt-rtx", tolerance=0
    )


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("onnx_graphsurgeon") is None, reason="no onnx-graphsurgeon: pip install onnx-graphsurgeon"
)
def test_the_bisection_finds_the_altered_node(tiny_bundle, inputs, tmp_path):
    model = onnx.load(tiny_bundle / "scorer.onnx")
    altered = next(node for node in model.graph.node if node.op_type == "Exp")
    altered.op_type = "Abs"
    onnx.save(model, tmp_path / "altered.onnx")
    golden = tiny_bundle / "scorer.onnx"
    commands = bisect_commands(
        tmp_path / "altered.onnx", inputs, tmp_path, backend="onnxruntime", tolerance=1e-6, golden=golden
    )
    done = shell(commands, tmp_path)
    assert done.returncode == 0, done.stdout[-3000:]
    left = onnx.load(tmp_path / "reduced.onnx").graph.node
    assert altered.name in {node.name for node in left}
    assert len(left) < len(model.graph.node) / 4
