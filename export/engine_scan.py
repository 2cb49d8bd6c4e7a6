"""Look through a graph for what TensorRT would refuse or, worse, ignore, before its builder runs; names node and stage.

TensorRT reports every unknown operator as a missing plugin. The refused forms of Attention are measured (TensorRT-RTX 1.7.1):
three fail to parse, one is dropped in silence, one fails in the builder.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator

from onnx import ModelProto, NodeProto, TensorProto

from lilicorr.runtime.contract import TENSORRT_DOMAIN
from lilicorr.runtime.errors import UserError

STAGES = {
    "target": "the trace of the target's own model code",
    "drafter": "the trace of the drafter",
    "scorer": "the trace of the LiLiCorr head",
}
PAST_INPUTS, LENGTHS_INPUT, MASK_INPUT = (4, 5), 6, 3  # of ONNX Attention


def require_supported(
    model: ModelProto, component: str, supports: Callable[[str], bool], plugins: Collection[tuple[str, str]]
) -> None:
    """Refuse operators that neither the parser, a model-local function nor a plugin provides, and the traps above.

    Args:
        supports: The parser's own answer for an operator of the standard domain.
        plugins: (namespace, name) of every plugin that is loaded.

    Raises:
        UserError: one line per node: operator, node, what is wrong, and the stage that made it.
    """
    problems = [
        f"{node.op_type} `{node.name}`: {what} (made by {_origin(model, node, component)})"
        for node, what in (*_unknown(model, supports, plugins), *_traps(model))
    ]
    if problems:
        raise UserError(
            f"{component}.onnx has nodes that TensorRT cannot take:\n  " + "\n  ".join(problems),
            hint="make plugin" if any(node.domain == "lilicorr" for node in model.graph.node) else None,
        )


def _unknown(
    model: ModelProto, supports: Callable[[str], bool], plugins: Collection[tuple[str, str]]
) -> Iterator[tuple[NodeProto, str]]:
    functions = {(function.domain, function.name) for function in model.functions}
    for node in model.graph.node:
        if node.domain in ("", "ai.onnx", TENSORRT_DOMAIN):
            if not supports(node.op_type):
                yield node, "the parser does not know this operator"
        elif not {(node.domain, node.op_type)} & {*functions, *plugins}:
            yield (
                node,
                f"no plugin `{node.op_type}` in namespace `{node.domain}` is loaded, and the graph has no function for it",
            )


def _traps(model: ModelProto) -> Iterator[tuple[NodeProto, str]]:
    flags = {v.name for v in model.graph.input if v.type.tensor_type.elem_type == TensorProto.BOOL}
    seen: set[str] = set()
    for node in model.graph.node:
        if node.domain not in ("", "ai.onnx") or node.op_type != "Attention":
            continue
        inputs = [*node.input, *[""] * 7]
        if any(inputs[i] for i in PAST_INPUTS) or len([name for name in node.output if name]) > 1:
            yield node, "past and present K/V are not supported"
        if inputs[LENGTHS_INPUT]:
            yield node, "nonpad_kv_seqlen would be ignored in silence"
        if any(attribute.name == "softcap" and attribute.f for attribute in node.attribute):
            yield node, "softcap is not supported"
        if (mask := inputs[MASK_INPUT]) in flags:
            if mask in seen:
                yield node, f"the boolean mask input `{mask}` is shared with another Attention, which does not compile"
            seen.add(mask)


def _origin(model: ModelProto, node: NodeProto, component: str) -> str:
    """The stage, and the nearest weight up or down the graph, which says the module."""
    weights = {weight.name for weight in model.graph.initializer if "." in weight.name}
    made_by = {name: other for other in model.graph.node for name in other.output}
    used_by: dict[str, list[NodeProto]] = {}
    for other in model.graph.node:
        for name in other.input:
            used_by.setdefault(name, []).append(other)
    queue, seen = deque([node]), {id(node)}
    while queue:
        current = queue.popleft()
        if found := next((name for name in current.input if name in weights), None):
            return f"{STAGES[component]}, near weight `{found}`"
        near = [made_by[name] for name in current.input if name in made_by]
        near += [user for name in current.output for user in used_by.get(name, ())]
        for other in near:
            if id(other) not in seen:
                seen.add(id(other))
                queue.append(other)
    return STAGES[component]
