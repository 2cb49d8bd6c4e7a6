"""The ONNX Runtime backend on a one-node graph: bound memory, changed inputs, and what it refuses."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from lilicorr.runtime.bundle import Bundle
from lilicorr.runtime.errors import EXIT_ENGINE, UserError
from lilicorr.runtime.manifest import Component, Tensor
from lilicorr.runtime.ort import OrtBackend
from tests.runtime.fakes import tiny_manifest


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    """y = x + x and z = -x."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"]), helper.make_node("Neg", ["x"], ["z"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", "T"])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", "T"]) for name in "yz"],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, tmp_path / "g.onnx")
    x, y, z = (Tensor(name, "float32", ("N", "T")) for name in "xyz")
    component = Component("g.onnx", (), (x,), (y, z), 20, 10)
    return Bundle(tmp_path, dataclasses.replace(tiny_manifest(), components={"target": component}))


def test_call_reads_and_writes_the_bound_memory(bundle: Bundle) -> None:
    with OrtBackend(bundle, threads=1) as backend:
        whole, out = backend.buffer((4, 8), "float32"), backend.buffer((4, 8), "float32")
        x, y = backend.view(whole, (2, 3)), backend.view(out, (2, 3))
        call = backend.bind("target", {"x": x}, {"y": y})
        for scale in (1, 5):
            values = scale * np.arange(6, dtype=np.float32).reshape(2, 3)
            backend.upload(x, values)
            call()
            np.testing.assert_array_equal(backend.download(y)[0], 2 * values)
        assert not out.reshape(-1)[6:].any()
        seconds = backend.take_seconds()
        assert list(seconds) == ["target"]
        assert seconds["target"] > 0
        assert backend.take_seconds() == {}


def test_graph_that_differs_from_the_manifest(bundle: Bundle) -> None:
    component = bundle.manifest.components["target"]
    bundle.manifest.components["target"] = dataclasses.replace(component, outputs=component.outputs[:1])
    with pytest.raises(UserError, match=r"disagree on the outputs of `target`: \[\('z', 'float32'\)\]"):
        OrtBackend(bundle, threads=1)


def test_unreadable_graph(bundle: Bundle) -> None:
    bundle.path("g.onnx").write_bytes(b"not a graph")
    with pytest.raises(UserError, match=r"cannot load `g\.onnx`"):
        OrtBackend(bundle, threads=1)


def test_bf16_is_refused(bundle: Bundle) -> None:
    with pytest.raises(UserError, match="bf16") as error:
        OrtBackend(Bundle(bundle.folder, dataclasses.replace(bundle.manifest, precision="bf16")))
    assert error.value.exit_code == EXIT_ENGINE


def test_missing_onnxruntime_names_the_extra(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UserError) as error:
        OrtBackend(bundle)
    assert error.value.hint == "pip install 'lilicorr[cpu]'"


@pytest.mark.parametrize("threads", [-1, 0, 10_000])
def test_threads_beyond_the_cores(bundle: Bundle, threads: int) -> None:
    with pytest.raises(UserError, match=rf"{threads} threads, this process may use 1 to \d+"):
        OrtBackend(bundle, threads=threads)
