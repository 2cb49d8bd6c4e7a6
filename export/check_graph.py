"""Check a written graph file and describe it: onnx.checker in full with strict shape inference, opset, IR version, interface.

Works by path, so that weights beyond protobuf's 2 GB are never loaded.
"""

from __future__ import annotations

from pathlib import Path

import onnx

from lilicorr.runtime.manifest import Component, Tensor

DTYPES = {
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.BFLOAT16: "bfloat16",
    onnx.TensorProto.INT32: "int32",
}
SYMBOLS = frozenset("NTCM")


def component_from_graph(path: Path, weights: tuple[str, ...]) -> Component:
    """Check the graph at `path` and describe it for the manifest.

    Args:
        weights: The weight files it refers to, relative to the bundle.

    Raises:
        onnx.checker.ValidationError, onnx.shape_inference.InferenceError: the file is not valid ONNX.
        ValueError: an interface tensor has a dtype or dimension that docs/design.md does not know.
    """
    onnx.checker.check_model(str(path), full_check=True)
    model = onnx.load(path, load_external_data=False)
    opset = next(entry.version for entry in model.opset_import if entry.domain == "")
    inputs, outputs = (tuple(_tensor(v) for v in values) for values in (model.graph.input, model.graph.output))
    return Component(path.name, weights, inputs, outputs, opset, model.ir_version)


def _tensor(value: onnx.ValueInfoProto) -> Tensor:
    kind = value.type.tensor_type
    dims = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param for d in kind.shape.dim)
    unknown = [d for d in dims if isinstance(d, str) and d not in SYMBOLS]
    if kind.elem_type not in DTYPES or unknown:
        raise ValueError(f"`{value.name}` has element type {kind.elem_type} and dimensions {dims}")
    return Tensor(value.name, DTYPES[kind.elem_type], dims)
