"""What our builder calls, against the signatures of the real bindings.

The bindings import without TensorRT when stubs stand for its libraries; nothing of TensorRT runs.
"""

import dataclasses
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import onnx
import pytest
from onnx import TensorProto, helper

from lilicorr.export import trt_api
from lilicorr.export.engine_builder import Job
from lilicorr.runtime.engine_set import Profile, Range
from lilicorr.runtime.errors import UserError
from tests.export.checked_bindings import check, overridable
from tests.plugins_trt.stubs import write_stubs
from tests.plugins_trt.tools import ROOT, wheel

VERSIONS = ["bindings-10.3.0", "bindings-10.16.1.11", "bindings-11.4.0.106"]


@pytest.fixture(scope="module")
def stubs(tmp_path_factory):
    return write_stubs(tmp_path_factory.mktemp("stubs"))


def job_of(tmp_path):
    """A job on MatMul(x (N,4), weight)."""
    weight = helper.make_tensor("weight", TensorProto.FLOAT, [4, 4], [0.5] * 16)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 4]) for name in "xy")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weight"], ["y"], name="product")], "g", [x], [y], [weight]
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), tmp_path / "g.onnx")
    return Job(
        component="scorer",
        graph=str(tmp_path / "g.onnx"),
        engine=str(tmp_path / "g.engine"),
        layers=str(tmp_path / "layers.tsv"),
        precision="fp32",
        profiles=(Profile("verify", {"x": Range((1, 4), (1, 4), (4, 4))}),),
        backend="tensorrt",
        compute_capabilities=("8.9",),
        workspace_mib=64,
        optimization_level=3,
        plugin_library="plugin.so",
        plugin_name="GreedyWalk",
        plugin_namespace="lilicorr",
        timing_cache=str(tmp_path / "times.cache"),
    )


def job(tmp_path, **changes):
    """The same, written to a file."""
    path = tmp_path / "job.json"
    path.write_text(json.dumps(dataclasses.asdict(dataclasses.replace(job_of(tmp_path), **changes))))
    return path


def run(folder, module, path, scenario, stubs):
    environment = os.environ | {"LD_LIBRARY_PATH": str(stubs), "PYTHONPATH": f"{folder}:{ROOT}"}
    command = [sys.executable, "-m", "tests.export.checked_bindings", module, path, scenario]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("version", VERSIONS)
def test_every_call_is_one_that_this_version_declares(version, stubs, tmp_path):
    if (folder := wheel(version)) is None:
        pytest.skip(f"no {version}: run `make tensorrt-wheels`")
    path = job(tmp_path)
    (tmp_path / "times.cache").write_bytes(b"older times")
    layers, calls = run(folder, "tensorrt_bindings", path, "built", stubs)
    assert layers == 3
    assert (tmp_path / "g.engine").read_bytes() == b"plan"
    assert (tmp_path / "times.cache").read_bytes() == b"times"
    assert {"IBuilderConfig.set_timing_cache", "IBuilderConfig.progress_monitor =", "OnnxParser.parse"} <= set(calls)
    what, _ = run(folder, "tensorrt_bindings", path, "unparsed", stubs)
    assert "TensorRT cannot parse scorer.onnx" in what
    what, _ = run(folder, "tensorrt_bindings", path, "without plugin", stubs)
    assert "TensorRT did not load the plugin `plugin.so`" in what
    what, _ = run(folder, "tensorrt_bindings", path, "refused", stubs)
    assert "TensorRT cannot build scorer.onnx" in what


def test_every_call_is_one_that_tensorrt_rtx_declares(stubs, tmp_path):
    if (folder := wheel("rtx-1.7.1.116")) is None:
        pytest.skip("no tensorrt-rtx: run `make tensorrt-wheels`")
    path = job(tmp_path, backend="tensorrt-rtx", plugin_library=None, timing_cache=None)
    layers, calls = run(folder, "tensorrt_rtx_bindings", path, "built", stubs)
    assert layers == 3
    assert "IBuilderConfig.set_compute_capability" in calls


def test_a_capability_that_rtx_lacks_lists_those_it_has():
    members = {"NONE": 0, "CURRENT": 1, "SM86": 2, "SM120": 3}
    trt = SimpleNamespace(__version__="1.7", ComputeCapability=SimpleNamespace(__members__=members))
    assert trt_api.compute_capability_member(trt, "12.0") == 3
    with pytest.raises(UserError, match=r"compute capability 8\.7; it knows 8\.6, 12\.0"):
        trt_api.compute_capability_member(trt, "8.7")


@pytest.mark.parametrize("given", [(), ("1",), (1, 2, 3)])
def test_the_checker_of_calls_refuses_what_is_not_declared(given):
    declared = "f(self: module.A, n: int, m: int = 0) -> bool\n\n    Text."
    assert check("A.f", declared, (1,)) == "bool"
    with pytest.raises(TypeError, match=r"A\.f does not take"):
        check("A.f", declared, given)


def test_the_checker_refuses_an_override_of_nothing():
    class Base:
        def log(self):
            """Declared."""

    class Logger(overridable(Base)):
        def log(self):
            """An override."""

    assert issubclass(Logger, Base)
    with pytest.raises(AttributeError, match="Base has no method logg to override"):

        class Misspelt(overridable(Base)):
            def logg(self):
                """An override of nothing."""
