"""Replace float weights of a traced graph by their integers: DequantizeLinear with a scale per block, in front of each product.

One form for every reader: TensorRT and TensorRT-RTX compile it to products with narrow weights, ONNX Runtime fuses it to
MatMulNBits when it opens the file. The integers of a product are found by the bytes of its columns, so that it does not matter
how the graph was rewritten before (transposed, merged): a column is exactly a dequantised row, or it is not ours.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from itertools import groupby

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from lilicorr.export.block_weights import BlockWeight

OPSET = 21  # the first whose DequantizeLinear has blocks and 4-bit integers
INTEGERS = {4: ir.DataType.INT4, 8: ir.DataType.INT8}
TORCH = {ir.DataType.FLOAT: torch.float32, ir.DataType.FLOAT16: torch.float16, ir.DataType.BFLOAT16: torch.bfloat16}

Run = tuple[BlockWeight, list[int]]  # a weight and rows of it, in the order of a product's columns


def quantise_weights(model: ir.Model, weights: Sequence[BlockWeight]) -> None:
    """Put `weights` in place of the float weights that were dequantised from them; `model` becomes one of opset OPSET.

    Args:
        model: Simplified, traced from a module that holds `BlockWeight.dequantised`.
        weights: All of one block and bits.

    Raises:
        AssertionError: a product mixes our columns with others, or a row is in no product: the graph is not what was traced.
    """
    # Since 18 the operators of our graphs have only learned more dtypes. A version converter would inline native attention.
    for scope in (model, *model.functions.values()):
        scope.opset_imports[""] = OPSET
    products = [node for node in model.graph if node.op_type == "MatMul" and node.inputs[1].is_initializer()]
    dtype = TORCH[products[0].inputs[1].dtype]
    places: dict[bytes, tuple[int, int]] = {}  # digest of a dequantised row -> which weight, which row
    for index, weight in enumerate(weights):
        rows = _digests(ir.tensor(weight.dequantised(dtype)).numpy())
        places.update((row, (index, number)) for number, row in enumerate(rows))
    unused = set(places.values())
    for node in products:
        name = node.inputs[1].name
        columns = [places.get(column) for column in _digests(node.inputs[1].const_value.numpy().T)]
        found = [place for place in columns if place is not None]
        if not found:
            continue
        if len(found) < len(columns):
            raise AssertionError(f"`{name}`: only {len(found)} of {len(columns)} columns are quantised")
        unused.difference_update(found)
        runs = [(weights[i], [row for _, row in run]) for i, run in groupby(found, lambda place: place[0])]
        _dequantise_before(model, node, runs)
    if unused:
        raise AssertionError(f"{len(unused)} quantised rows are in no product of the graph")


def _digests(rows: np.ndarray) -> list[bytes]:
    """One digest per row of a 2-D array: a row of a large model has tens of kilobytes."""
    return [hashlib.sha256(row).digest() for row in np.ascontiguousarray(rows).view(np.uint8)]


def _dequantise_before(model: ir.Model, node: ir.Node, runs: Sequence[Run]) -> None:
    """Let the product `node` read the integers of `runs` through a DequantizeLinear."""
    old, (first, _) = node.inputs[1], runs[0]
    inner, outer = old.shape
    values = _weight(
        model,
        f"{old.name}.values",
        (inner, outer),
        INTEGERS[first.bits],
        lambda: _gathered(runs, lambda weight: weight.values),
    )
    scales = _weight(
        model,
        f"{old.name}.scales",
        (inner // first.block, outer),
        old.dtype,
        lambda: _gathered(runs, lambda weight: weight.scales),
    )
    node_before = ir.node("DequantizeLinear", [values, scales], {"axis": 0, "block_size": first.block})
    dequantised = node_before.outputs[0]
    dequantised.shape, dequantised.type = old.shape, old.type
    model.graph.insert_before(node, node_before)
    node.replace_input_with(1, dequantised)
    if not old.uses():
        model.graph.initializers.pop(old.name)


def _gathered(runs: Sequence[Run], part: Callable[[BlockWeight], Tensor]) -> Tensor:
    """(…, O) the rows of `runs` as columns."""
    return torch.cat([part(weight)[rows] for weight, rows in runs]).T.contiguous()


def _weight(
    model: ir.Model, name: str, shape: tuple[int, int], dtype: ir.DataType, make: Callable[[], Tensor]
) -> ir.Value:
    """A new initializer that is computed when it is written."""

    def tensor() -> ir.TensorProtocol:
        made = make()
        # numpy has no 4-bit type; the one ONNX brings is cast to from int8.
        return ir.tensor(made.numpy().astype(dtype.numpy())) if dtype in INTEGERS.values() else ir.tensor(made)

    lazy = ir.LazyTensor(tensor, dtype=dtype, shape=ir.Shape(shape), name=name)
    value = ir.Value(name=name, shape=lazy.shape, type=ir.TensorType(dtype), const_value=lazy)
    model.graph.register_initializer(value)
    return value
