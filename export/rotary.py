"""The rotation of q and k by their positions in fewer nodes: one rotation for both, its sign in the sine table.

x·cos + [-x₂ ; x₁]·sin, with x₁ and x₂ the halves of a head, is x·cos + [x₂ ; x₁]·[-sin ; sin]: the same products and the same sum,
so the result is equal bit for bit. Only this half layout is known (Llama, Qwen, Mistral, the drafter); others stay as traced.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from lilicorr.export.ir_edit import constant, dims, integers, replace, split, substitute


@dataclass(frozen=True)
class Rotation:
    """x (N,h,T,D), cos and sin that broadcast to it with one head; `end` is the Add that gives the rotated heads."""

    x: ir.Value
    cos: ir.Value
    sin: ir.Value
    end: ir.Node

    @property
    def width(self) -> int:
        return self.x.shape[-1]


def merge_rotations(model: ir.Model) -> None:
    """Rotate heads that come out of one Split of heads together, and every rotation with a signed sine table."""
    groups: dict[tuple[ir.Node | ir.Value, ir.Value, ir.Value], list[Rotation]] = {}
    for node in list(model.graph):
        rotation = _rotation(node)
        if rotation is not None:
            source = rotation.x.producer() if _is_split_of_heads(rotation.x.producer()) else rotation.x
            groups.setdefault((source, rotation.cos, rotation.sin), []).append(rotation)
    tables: dict[ir.Value, ir.Value] = {}
    for (source, _, _), rotations in groups.items():
        joined = _joined(model, source, rotations) if isinstance(source, ir.Node) else None
        if joined is None:
            for rotation in rotations:
                replace(model, rotation.end, _rotated(model, rotation, rotation.x, rotation.end, tables))
        else:
            turned = _rotated(model, rotations[0], joined, rotations[0].end, tables)
            heads = [rotation.x.shape[1] for rotation in rotations]
            for rotation, part in zip(rotations, split(model, rotations[0].end, turned, heads, axis=1), strict=True):
                replace(model, rotation.end, part)


def _rotated(
    model: ir.Model, like: Rotation, x: ir.Value, before: ir.Node, tables: dict[ir.Value, ir.Value]
) -> ir.Value:
    """`x` rotated as `like` is."""
    half = like.width // 2
    if like.sin not in tables:
        signs = np.repeat([-1.0, 1.0], half).astype(like.sin.dtype.numpy())
        signed = ir.node("Mul", [like.sin, constant(model, before, signs)])
        model.graph.insert_before(before, signed)
        tables[like.sin] = signed.outputs[0]
    first, second = split(model, before, x, [half, half], axis=-1)
    swapped = ir.node("Concat", [second, first], {"axis": -1})
    straight = ir.node("Mul", [x, like.cos])
    crossed = ir.node("Mul", [swapped.outputs[0], tables[like.sin]])
    total = ir.node("Add", [straight.outputs[0], crossed.outputs[0]])
    model.graph.insert_before(before, [swapped, straight, crossed, total])
    total.outputs[0].shape, total.outputs[0].type = x.shape, x.type
    return total.outputs[0]


def _joined(model: ir.Model, source: ir.Node, rotations: list[Rotation]) -> ir.Value | None:
    """The heads of all `rotations` as one value; None unless they are the first parts of the Split `source`, in order."""
    count, parts = len(rotations), list(source.outputs)
    if count < 2 or any(rotation.x is not part for rotation, part in zip(rotations, parts, strict=False)):
        return None
    sizes = integers(source.inputs[1])
    assert sizes is not None  # `source` is a Split of heads
    if count == len(parts):
        return source.inputs[0]
    joined, *rest = split(model, source, source.inputs[0], [sum(sizes[:count]), *sizes[count:]], axis=1)
    for part, new in zip(parts[count:], rest, strict=True):
        substitute(model, part, new)
    return joined


def _is_split_of_heads(node: ir.Node | None) -> bool:
    return (
        node is not None
        and node.op_type == "Split"
        and node.attributes["axis"].as_int() == 1
        and len(node.inputs) == 2
        and integers(node.inputs[1]) is not None
    )


def _rotation(node: ir.Node) -> Rotation | None:
    """The rotation that ends in `node`, an Add of two products in either order."""
    if node.op_type != "Add":
        return None
    terms = [_factors(value) for value in node.inputs]
    for straight, crossed in (terms, terms[::-1]):
        for x, cos in (straight, straight[::-1]):
            for swapped, sin in (crossed, crossed[::-1]):
                if x is not None and swapped is not None and _swaps_halves_of(swapped, x) and _are_tables(x, cos, sin):
                    return Rotation(x, cos, sin, node)
    return None


def _factors(value: ir.Value | None) -> tuple[ir.Value | None, ir.Value | None]:
    producer = None if value is None else value.producer()
    return (None, None) if producer is None or producer.op_type != "Mul" else tuple(producer.inputs)


def _are_tables(x: ir.Value, cos: ir.Value, sin: ir.Value) -> bool:
    """Whether both have one row per token, the same for all heads."""
    shapes = dims(cos), dims(sin)
    return all(s is not None and len(s) == 4 and s[1] == 1 and s[3] == x.shape[3] for s in shapes)


def _swaps_halves_of(value: ir.Value, x: ir.Value) -> bool:
    """Whether `value` is [-x₂ ; x₁]."""
    shape, concat = dims(x), value.producer()
    if (
        shape is None
        or len(shape) != 4
        or not isinstance(shape[3], int)
        or concat is None
        or concat.op_type != "Concat"
    ):
        return False
    if concat.attributes["axis"].as_int() not in (-1, 3) or len(concat.inputs) != 2:
        return False
    negated, first = concat.inputs
    negation = negated.producer()
    if negation is None or negation.op_type != "Neg":
        return False
    half = shape[3] // 2
    return _part(negation.inputs[0], x) == (half, 2 * half) and _part(first, x) == (0, half)


def _part(value: ir.Value, x: ir.Value) -> tuple[int, int] | None:
    """Where `value` begins and ends in the last of the four axes of `x`; None when it is not such a part."""
    node = value.producer()
    if node is None or node.inputs[0] is not x:
        return None
    width = x.shape[3]
    if node.op_type == "Slice":
        starts, ends, axes, steps = (integers(i) for i in node.inputs[1:5]) if len(node.inputs) == 5 else [None] * 4
        if axes not in ([3], [-1]) or steps != [1] or starts is None or ends is None:
            return None
        start, end, _ = slice(starts[0], ends[0]).indices(width)
        return start, end
    if node.op_type == "Split" and node.attributes["axis"].as_int() in (-1, 3):
        parts = len(node.outputs)
        sizes = integers(node.inputs[1]) if len(node.inputs) == 2 else [width // parts] * parts
        if sizes is None or width % parts:
            return None
        start = sum(sizes[: value.index()])
        return start, start + sizes[value.index()]
    return None
