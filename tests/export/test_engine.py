"""Engines of a tiny bundle through the command, with NVIDIA's own parser and builder (TensorRT-RTX needs no GPU to build).

Nothing here runs an engine. Everything is in processes of its own: the library is never loaded into the test process.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

import onnx
import pytest

from lilicorr.runtime.engine_set import FILE_NAME, read_engine_set, require_whole
from tests.fixtures import edit_json
from tests.plugins_trt.tools import wheel

COMMAND = [sys.executable, "-c", "from lilicorr.export.cli import main; main()", "engine"]
AHEAD = ("--backend", "tensorrt-rtx", "--compute-capability", "8.9,12.0")


@pytest.fixture(scope="module")
def environment():
    if (folder := wheel("rtx-1.7.1.116")) is None:
        pytest.skip("no tensorrt-rtx: run `make tensorrt-wheels`")
    return os.environ | {"PYTHONPATH": str(folder)}


@pytest.fixture(scope="module")
def bundle(tiny_bundle, environment, tmp_path_factory):
    """A bundle with its engines."""
    folder = shutil.copytree(tiny_bundle, tmp_path_factory.mktemp("engines") / "bundle")
    done = run(folder, environment)
    assert done.returncode == 0, done.stderr
    return folder


def run(folder, environment, *more, ahead=AHEAD):
    return subprocess.run([*COMMAND, folder, *ahead, *more], capture_output=True, text=True, env=environment)


def engines_of(folder):
    (engines,) = (folder / "engines").iterdir()
    return engines


def test_all_three_graphs_compile_for_both_generations(bundle):
    folder = engines_of(bundle)
    assert folder.name == "tensorrt-rtx-sm89-sm120-1.7.1.116"
    engines = read_engine_set(folder)
    require_whole(folder, engines)
    assert set(engines.engines) == {"scorer", "drafter", "target"}
    assert engines.compute_capabilities == ("8.9", "12.0")
    assert engines.plugin is None  # TensorRT-RTX has no plugin layer
    assert [p.name for p in engines.engines["target"].profiles] == ["prefill", "verify"]
    assert engines.engines["target"].profiles[1].shapes["tokens"].max == (4, 5)


def test_the_dtype_of_every_float_tensor_is_listed(bundle):
    rows = [line.split("\t") for line in (engines_of(bundle) / "target.layers.tsv").read_text().splitlines()]
    assert {row[0] for row in rows} == {"fp32"}
    assert sum(row[1] == "Softmax" for row in rows) == 4  # one per layer


def test_what_is_up_to_date_is_not_built_again(bundle, environment):
    before = (engines_of(bundle) / FILE_NAME).stat().st_ino
    done = run(bundle, environment, "--json")
    assert done.stderr.count("up to date") == 3
    assert json.loads(done.stdout.splitlines()[-1])["engines"] == str(engines_of(bundle))
    assert (engines_of(bundle) / FILE_NAME).stat().st_ino == before


def test_only_a_damaged_engine_is_built_again_and_the_reason_is_said(bundle, environment, tmp_path):
    own = shutil.copytree(bundle, tmp_path / "own")
    engine = engines_of(own) / "drafter.engine"
    engine.write_bytes(engine.read_bytes()[:-1])
    done = run(own, environment)
    assert done.returncode == 0, done.stderr
    assert "drafter: to build (`drafter.engine` is missing or damaged)" in done.stderr
    assert done.stderr.count("up to date") == 2
    require_whole(engines_of(own), read_engine_set(engines_of(own)))


def test_another_setting_builds_again(bundle, environment, tmp_path):
    own = shutil.copytree(bundle, tmp_path / "own")
    done = run(own, environment, "--optimization-level", "0")
    assert done.stderr.count("to build (optimization level was 3, is 0)") == 3


@pytest.mark.parametrize(
    ("operator", "domain", "reason"),
    [
        ("Sharpen", "other", "no plugin `Sharpen` in namespace `other` is loaded"),
        ("Det", "", "the parser does not know this operator"),
    ],
)
def test_an_operator_nobody_knows_is_named_before_the_builder_runs(
    operator, domain, reason, tiny_bundle, environment, tmp_path
):
    own = shutil.copytree(tiny_bundle, tmp_path / "own")
    model = onnx.load(own / "scorer.onnx", load_external_data=False)
    node = next(node for node in model.graph.node if node.op_type == "Softmax")
    node.op_type, node.domain, node.name = operator, domain, "sharpen_1"
    if domain:
        model.opset_import.append(onnx.helper.make_opsetid(domain, 1))
    onnx.save(model, own / "scorer.onnx")
    record_again(own, "scorer.onnx")
    done = run(own, environment)
    assert done.returncode == 1
    assert f"{operator} `sharpen_1`: {reason}" in done.stderr
    assert "the trace of the LiLiCorr head, near weight `" in done.stderr
    assert "scorer: build" not in done.stderr
    assert not any((own / "engines").iterdir())


def record_again(folder, name):
    """Give the manifest the size and hash of the edited file."""
    from lilicorr.runtime.bundle import file_sha256

    files = json.loads((folder / "manifest.json").read_text())["files"]
    for record in files:
        if record["path"] == name:
            record |= {"sha256": file_sha256(folder / name), "bytes": (folder / name).stat().st_size}
    edit_json(folder / "manifest.json", {"files": files})


READ_BACK = """
import sys
from types import SimpleNamespace
import tensorrt_rtx_bindings as trt
from lilicorr.export.engine_builder import _require_read_back
logger = trt.Logger(trt.Logger.ERROR)
builder = trt.Builder(logger)
network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
parser = trt.OnnxParser(network, logger)
assert parser.parse_from_file(sys.argv[1])
for precision in ("fp32", "fp16"):
    try:
        _require_read_back(trt, network, SimpleNamespace(component="scorer", precision=precision))
    except Exception as error:
        print(precision, error)
"""


def test_dtypes_are_read_back_from_the_parsed_network(tiny_bundle, environment):
    command = [sys.executable, "-c", READ_BACK, tiny_bundle / "scorer.onnx"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("fp16 TensorRT read other dtypes from scorer.onnx than asked:\n")
    assert done.stdout.count("reads DataType.FLOAT, expected DataType.HALF") > 10


def test_ctrl_c_ends_the_build_and_leaves_nothing(tiny_bundle, environment, tmp_path):
    own = shutil.copytree(tiny_bundle, tmp_path / "own")
    with subprocess.Popen([*COMMAND, own, *AHEAD], stderr=subprocess.PIPE, text=True, env=environment) as process:
        for line in process.stderr:
            if "target: build" in line:
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
    assert process.returncode == 130, rest
    assert rest.endswith("interrupted\n")
    assert not any((own / "engines").iterdir())


@pytest.mark.parametrize(
    ("ahead", "message"),
    [
        (
            ("--backend", "tensorrt-rtx", "--compute-capability", "8.7"),
            "cannot build for compute capability 8.7; it knows",
        ),
        (("--backend", "tensorrt-rtx", "--compute-capability", "ada"), "`ada` is not a list of compute capabilities"),
        ((*AHEAD, "--precision", "nvfp4"), "nvfp4 does not run on compute capability 8.9 (L4, RTX 40)"),
        (
            ("--backend", "tensorrt-rtx", "--compute-capability", "8.7", "--precision", "fp8"),
            "fp8 does not run on compute capability 8.7 (Orin): tensorrt-rtx needs 8.9 or newer for it",
        ),
        (
            ("--backend", "tensorrt-rtx", "--compute-capability", "7.5", "--precision", "bf16"),
            "bf16 does not run on compute capability 7.5 (Turing): tensorrt-rtx needs 8.0 or newer for it",
        ),
        (("--backend", "tensorrt"), "`tensorrt` cannot be imported here"),
    ],
)
def test_what_cannot_be_is_refused_at_once(tiny_bundle, environment, ahead, message):
    done = run(tiny_bundle, environment, ahead=ahead)
    assert done.returncode == 1
    assert message in done.stderr
    assert "hint: " in done.stderr
    assert not (tiny_bundle / "engines").exists()
