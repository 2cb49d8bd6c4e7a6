"""Polygraphy takes our files unchanged, and its bisection finds the node that was altered (ONNX Runtime on both sides)."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import pytest

from lilicorr.export.backend_parity import compare_graph, golden_runner, round_calls
from lilicorr.export.budgets import BUDGETS
from lilicorr.export.polygraphy_commands import bisect_commands, freeze, record_calls, save_inputs, write_bisection
from lilicorr.export.walk import add_walk_function
from lilicorr.runtime.bundle import open_bundle
from lilicorr.runtime.manifest import read_manifest
from tests.fixtures import TEXT
from tests.plugins_trt.tools import wheel

RTX = wheel("rtx-1.7.1.116")
BIN = Path(sys.executable).parent
needs_graphsurgeon = pytest.mark.skipif(
    importlib.util.find_spec("onnx_graphsurgeon") is None, reason="no onnx-graphsurgeon: pip install onnx-graphsurgeon"
)
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


@pytest.mark.skipif(RTX is None, reason="no TensorRT-RTX: make tensorrt-wheels")
def test_polygraphy_converts_the_scorer_with_tensorrt_rtx(tiny_bundle, tmp_path):
    """The wheel's bindings go by another name than the package that Polygraphy imports."""
    (tmp_path / "tensorrt_rtx.py").write_text(
        "from tensorrt_rtx_bindings import *\nfrom tensorrt_rtx_bindings import __version__\n"
    )
    sizes = {"candidate_ids": "4,4]", "log_probs": "4,4]", "hidden": "4,32]", "anchor_row": "32]"}
    shapes = [" ".join(f"{name}:[{lanes},{rest}" for name, rest in sizes.items()) for lanes in (1, 1, 4)]
    ranges = " ".join(f"--trt-{end}-shapes {shape}" for end, shape in zip(("min", "opt", "max"), shapes, strict=True))
    settings = f"POLYGRAPHY_USE_TENSORRT_RTX=1 PYTHONPATH={tmp_path}:{RTX}"
    convert = f"polygraphy convert {tiny_bundle}/scorer.onnx -o s.engine --compute-capabilities 8.9 {ranges}"
    done = shell(f"{settings} {convert}", tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert (tmp_path / "s.engine").stat().st_size > 10_000


def commands(backend, plugin=None):
    files = Path("b/suspect.onnx"), Path("b/golden.onnx"), Path("in.json"), Path("out dir")
    return bisect_commands(*files, backend=backend, tolerance=0.01, plugin=plugin)


def test_the_commands_name_backend_plugin_and_tolerance():
    record, merge, whole, reduce = commands("tensorrt", Path("p.so")).splitlines()
    assert "run b/golden.onnx --onnxrt --load-inputs in.json" in record
    assert merge.endswith("-o 'out dir/layer-inputs.json'")
    assert whole.startswith("if polygraphy run b/suspect.onnx --trt --load-inputs 'out dir/layer-inputs.json' ")
    assert "reduce b/suspect.onnx -o 'out dir/reduced.onnx' " in reduce
    assert "--check polygraphy run polygraphy_debug.onnx --trt " in reduce
    assert reduce.endswith("--atol 0.01 --rtol 0 --infinities-compare-equal --plugins p.so")
    assert commands("tensorrt-rtx").startswith("export POLYGRAPHY_USE_TENSORRT_RTX=1\n")


def test_polygraphy_parses_the_commands_for_tensorrt_and_those_of_the_page(tmp_path):
    """Parsed, not run: `--gen-script` stops before TensorRT is imported."""
    script = commands("tensorrt", Path("p.so"))
    whole = re.search(r"^if (.*); then ", script, re.MULTILINE)[1]
    page = (Path(__file__).parents[2] / "docs/polygraphy.md").read_text(encoding="utf-8")
    lines = [whole, *re.findall(r"^polygraphy run .*$", page, re.MULTILINE)]
    assert len(lines) > 2
    done = shell("\n".join(f"{line} --gen-script {i}.py" for i, line in enumerate(lines)), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "plugins=['p.so']" in (tmp_path / "0.py").read_text()


@pytest.fixture
def small(tmp_path):
    """A graph of twelve operators and a walk, with a dynamic batch, and a call of it."""
    chain = ["Tanh", "Exp", "Neg", "Sigmoid", "Abs", "Exp", "Tanh", "Sqrt", "Neg", "Exp", "Sigmoid"]
    nodes = [
        onnx.helper.make_node(operator, [f"t{i}"], [f"t{i + 1}"], name=f"layer{i}") for i, operator in enumerate(chain)
    ]
    nodes.append(onnx.helper.make_node("Unsqueeze", [f"t{len(chain)}", "axes"], ["row"], name="to_pair"))
    nodes.append(onnx.helper.make_node("Mul", ["row", "square"], ["pair"], name="pairs"))
    nodes.append(onnx.helper.make_node("GreedyWalk", ["t4", "pair"], ["path"], name="walk", domain="lilicorr"))
    fp32, values = onnx.TensorProto.FLOAT, np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
    graph = onnx.helper.make_graph(
        nodes,
        "small",
        [onnx.helper.make_tensor_value_info("t0", fp32, ["N", 4])],
        [
            onnx.helper.make_tensor_value_info("pair", fp32, ["N", 1, 4, 4]),
            onnx.helper.make_tensor_value_info("path", onnx.TensorProto.INT32, ["N", 2]),
        ],
        [
            onnx.numpy_helper.from_array(np.array([1, 2]), "axes"),
            onnx.numpy_helper.from_array(np.ones((1, 1, 4, 4), np.float32), "square"),
        ],
    )
    opsets = [onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("lilicorr", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    model = onnx_ir.from_proto(model)
    add_walk_function(model, 2, 20)
    onnx_ir.save(model, tmp_path / "small.onnx")
    return tmp_path / "small.onnx", {"t0": values}


@pytest.mark.slow
@needs_graphsurgeon
def test_the_bisection_finds_the_altered_node(small, tmp_path):
    golden, feeds = small
    model = onnx.load(golden)
    (altered,) = (node for node in model.graph.node if node.name == "layer5")
    altered.op_type = "Abs"
    onnx.save(model, tmp_path / "altered.onnx")
    command = write_bisection(
        tmp_path / "altered.onnx", feeds, tmp_path / "out", backend="onnxruntime", tolerance=1e-6, golden=golden
    )
    done = shell(command, tmp_path)
    assert done.returncode == 0, done.stdout[-3000:]
    left = onnx.load(tmp_path / "out/altered/reduced.onnx").graph.node
    assert "layer5" in {node.name for node in left}
    assert len(left) <= 3


def test_where_nothing_differs_the_script_says_so(small, tmp_path):
    graph, feeds = small
    done = shell(write_bisection(graph, feeds, tmp_path / "out", backend="onnxruntime", tolerance=1e-6), tmp_path)
    assert done.returncode == 1, done.stdout[-3000:]
    assert "no layer differs" in done.stderr


def test_a_frozen_graph_computes_the_same(tiny_bundle, tmp_path):
    """The target's constants, functions and weight files, whatever form they have."""
    calls = round_calls(open_bundle(tiny_bundle), TEXT)
    for graph, feeds in calls.items():
        shapes = {name: value.shape for name, value in feeds.items()}
        frozen = freeze(tiny_bundle / f"{graph}.onnx", shapes, tmp_path / f"{graph}.onnx")
        found = compare_graph(
            graph, golden_runner(tiny_bundle / frozen.name), golden_runner(frozen), feeds, BUDGETS["fp32"]
        )
        assert all(measure.passed for measure in found)
        left = onnx.load(frozen, load_external_data=False)
        assert not [node for node in left.graph.node if node.op_type == "Constant"]
        assert all(d.dim_value for value in left.graph.input for d in value.type.tensor_type.shape.dim)


def test_recorded_calls_are_copies_in_the_dtypes_of_the_graph(tiny_bundle):
    manifest, calls = read_manifest(tiny_bundle), {}
    run = record_calls(lambda graph, inputs: {}, manifest, calls)
    given = {tensor.name: np.ones((2,) * len(tensor.shape)) for tensor in manifest.components["target"].inputs}
    run("target", given)
    given["tokens"][:] = 7
    run("target", given | {"tokens": np.ones((2, 1))})  # a single token shows less than a block
    assert calls["target"]["tokens"].dtype == np.int32
    assert calls["target"]["k_cache_0"].dtype == np.float32
    assert calls["target"]["tokens"].tolist() == [[1, 1], [1, 1]]
