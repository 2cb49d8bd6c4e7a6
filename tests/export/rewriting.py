"""Graphs for rewrite tests in ONNX's own text form: simplified, checked, and compared with what they were."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from lilicorr.export.simplify import simplify

RNG = np.random.default_rng(0)


def weights(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    return {name: RNG.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def x(*shape: int) -> dict[str, np.ndarray]:
    return {"x": RNG.standard_normal(shape).astype(np.float32)}


def simplified(
    text: str, initializers: dict[str, np.ndarray], feeds: dict[str, np.ndarray], *, exact: bool = False
) -> tuple[Counter, ir.Model]:
    """Parse, simplify, compare all outputs; return the operator counts and the model.

    Args:
        exact: Every output must be equal bit for bit; otherwise within 1e-6.
    """
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]>\n{text}')
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in initializers.items())
    expected = _run(proto, feeds)
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    simplify(model)
    after = ir.to_proto(model)
    onnx.checker.check_model(after, full_check=True)
    assert [output.name for output in after.graph.output] == [output.name for output in proto.graph.output]
    tolerance = 0 if exact else 1e-6
    for found, wanted in zip(_run(after, feeds), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)
    return Counter(node.op_type for node in model.graph), model


def _run(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
