"""A written graph is described exactly, and an invalid one is refused."""

from pathlib import Path

import onnx
import pytest

from lilicorr.export.check_graph import component_from_graph
from lilicorr.runtime.manifest import Component, Tensor


def _write(folder: Path, body: str) -> Path:
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]>\n{body}')
    path = folder / "target.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_description_of_a_valid_graph(tmp_path):
    path = _write(tmp_path, "g (float16[N,T,4] x) => (int32[N,T,4] y) { y = Cast <to = 6> (x) }")
    assert component_from_graph(path, ("weights/target.bin",)) == Component(
        file="target.onnx",
        weights=("weights/target.bin",),
        inputs=(Tensor("x", "float16", ("N", "T", 4)),),
        outputs=(Tensor("y", "int32", ("N", "T", 4)),),
        opset=18,
        ir_version=10,
    )


def test_shapes_that_contradict_each_other_are_refused(tmp_path):
    path = _write(tmp_path, "g (float[N,4] x, float[5,2] w) => (float[N,2] y) { y = MatMul (x, w) }")
    with pytest.raises(Exception, match="ShapeInferenceError"):
        component_from_graph(path, ())


def test_an_undefined_name_is_refused(tmp_path):
    path = _write(tmp_path, "g (float[N,4] x) => (float[N,4] y) { y = Add (x, nowhere) }")
    with pytest.raises(onnx.checker.ValidationError, match="nowhere"):
        component_from_graph(path, ())


@pytest.mark.parametrize("kind", ["float[N,Q]", "double[N,4]"])
def test_interfaces_outside_the_contract_are_refused(kind, tmp_path):
    path = _write(tmp_path, f"g ({kind} x) => ({kind} y) {{ y = Neg (x) }}")
    with pytest.raises(ValueError, match="`x` has element type"):
        component_from_graph(path, ())
