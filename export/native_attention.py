"""TensorRT's own KV-cache update and attention with lengths as nodes, each with a model-local function of standard operators.

With the functions stock ONNX Runtime runs the file, which is what the parity ladder compares; `engine_builder` takes them out, so
that TensorRT's parser sees its own operators (`trt::TRT_KVCacheUpdate`, `trt::TRT_Attention`, with `kv_lengths` from 11.1 on).

Every visible key is in an additive mask, of the caches' dtype, and `kv_lengths` only bounds what is read: TensorRT takes no causal
flag beside a mask, and does not say whether its own diagonal ends at the length or at the end of the cache. Additive, because a
boolean mask shared by two layers does not compile. The query is scaled here: TRT_Attention scales nothing.

Shapes: N batch, Hq query heads, Hkv key/value heads, T queries, R written rows, C cache capacity (static), D head width.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import torch
from onnx import FunctionProto, NodeProto, TensorProto, helper, numpy_helper
from torch import Tensor

from lilicorr.export.attention import visibility_mask
from lilicorr.runtime.contract import TENSORRT_DOMAIN as DOMAIN

UPDATE, ATTENTION = "TRT_KVCacheUpdate", "TRT_Attention"
HIDDEN = -3e4  # finite in half precision, and far enough from any score that the softmax gives 0
BODY_HIDDEN = -1e9  # rows beyond `kv_lengths` are no keys at all, whatever the mask says of them


def write_rows(cache: Tensor, rows: Tensor, starts: Tensor) -> Tensor:
    """Trace `cache` (N,Hkv,C,D) with `rows` (N,Hkv,R,D) written from row `starts` (N) int32 on; computes nothing in eager mode.

    TensorRT wants the cache to be a graph input of static C and the result a graph output at the same address.
    """
    return torch.onnx.ops.symbolic(
        f"{DOMAIN}::{UPDATE}", (cache, rows, starts), dtype=cache.dtype, shape=cache.shape, version=1
    )


def native_mask(
    positions: Tensor, lengths: Tensor, capacity: int, dtype: torch.dtype, *, causal: bool, window: int | None
) -> Tensor:
    """Additive mask (N,1,T,C) over cache rows, row r being position r; arguments of `visibility_mask`, one for all heads.

    Args:
        positions: (N, T) int, of the queries.
        lengths: (N) int, rows that are keys, those of this call included.
    """
    rows = torch.arange(capacity, dtype=torch.int32)[None].expand(lengths.shape[0], -1)
    mask = visibility_mask(positions, rows, rows < lengths[:, None], group=1, causal=causal, window=window)
    return mask.clamp_min(HIDDEN).to(dtype)


def attend_rows(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, lengths: Tensor, scale: float) -> Tensor:
    """Trace attention of `query` (N,Hq,T,D) to rows 0…lengths-1 of `keys`, `values` (N,Hkv,C,D); computes nothing in eager mode.

    Args:
        mask: (N,1,T,C) from `native_mask`, dtype of `query`.
        lengths: (N) int32.
        scale: Multiplied into the queries.

    Returns:
        (N,Hq,T,D), dtype of `query`.
    """
    # No fused kernel computes in fp32; half precision without one is to fail in the builder, not to become slow in silence.
    attributes = {"TRT_decomposable": int(query.dtype == torch.float32)}
    inputs = (query * scale, keys, values, mask, None, lengths)
    return torch.onnx.ops.symbolic(
        f"{DOMAIN}::{ATTENTION}", inputs, attributes, dtype=query.dtype, shape=query.shape, version=1
    )


def add_native_functions(model: ir.Model, opset: int) -> None:
    """Give `model` the bodies of its native nodes."""
    for proto in (_update_function(opset), _attention_function(opset)):
        function = ir.serde.deserialize_function(proto)
        model.functions[function.identifier()] = function
    model.opset_imports[DOMAIN] = 1


class _Body:
    """Nodes of a function, appended one by one; `self(op, …)` returns the name of the node's output."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []

    def __call__(self, operator: str, *inputs: str, output: str | None = None, **attributes: object) -> str:
        name = output or f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def constant(self, value: float | list[int], dtype: type[np.generic] = np.int64) -> str:
        return self("Constant", value=numpy_helper.from_array(np.array(value, dtype)))

    def upto(self, tensor: str, axis: int) -> str:
        """0, 1, … below the size of an axis, int64."""
        size = self("Squeeze", self("Shape", tensor, start=axis, end=axis + 1))
        return self("Range", self.constant(0), size, self.constant(1))

    def function(self, name: str, inputs: list[str], output: str, opset: int, *attributes: str) -> FunctionProto:
        opsets = [helper.make_opsetid("", opset)]
        return helper.make_function(DOMAIN, name, inputs, [output], self.nodes, opsets, attributes=list(attributes))


def _update_function(opset: int) -> FunctionProto:
    body = _Body()
    starts = body("Cast", "write_indices", to=TensorProto.INT64)
    rows = body("Add", body("Unsqueeze", starts, body.constant([1])), body.upto("update", 2))  # (N, R)
    rows = body("Unsqueeze", rows, body.constant([1, 3]))
    rows = body("Expand", rows, body("Shape", "update"))
    body("ScatterElements", "past_cache", rows, "update", output="cache", axis=2)
    return body.function(UPDATE, ["past_cache", "update", "write_indices"], "cache", opset)


def _attention_function(opset: int) -> FunctionProto:
    """Query heads grouped to (N,Hkv,G,T,D); scores, mask and softmax in fp32."""
    body = _Body()
    shape = ("Concat", body.constant([0]), body("Shape", "K", start=1, end=2), body.constant([-1]))
    grouped = body("Reshape", "Q", body(*shape, body("Shape", "Q", start=2), axis=0))
    keys, values = (body("Unsqueeze", name, body.constant([2])) for name in ("K", "V"))  # (N, Hkv, 1, C, D)
    scores = body("MatMul", grouped, body("Transpose", keys, perm=[0, 1, 2, 4, 3]))
    mask = body("Unsqueeze", "attn_mask", body.constant([1]))
    scores, mask = (body("Cast", name, to=TensorProto.FLOAT) for name in (scores, mask))
    lengths = body("Unsqueeze", body("Cast", "kv_lengths", to=TensorProto.INT64), body.constant([1, 2, 3, 4]))
    is_key = body("Less", body.upto("K", 2), lengths)  # (N, 1, 1, 1, C)
    scores = body("Where", is_key, body("Add", scores, mask), body.constant(BODY_HIDDEN, np.float32))
    weights = body("CastLike", body("Softmax", scores, axis=-1), "Q")
    body("Reshape", body("MatMul", weights, values), body("Shape", "Q"), output="Y")
    inputs = ["Q", "K", "V", "attn_mask", "query_lengths", "kv_lengths"]
    return body.function(ATTENTION, inputs, "Y", opset, "TRT_decomposable")
