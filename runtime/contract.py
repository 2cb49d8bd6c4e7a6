"""The names, dtypes and shapes the three graphs must have for a given manifest: docs/design.md, "The three graphs", as code.

Compares descriptions only; it opens no graph.
"""

from __future__ import annotations

from lilicorr.runtime.manifest import Cache, Component, Manifest, Plugin, Tensor

FLOATS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
TWO_PART, NATIVE = ATTENTION_FORMS = ("two-part", "native")  # docs/attention.md
UPDATED = "updated_"  # before a cache's name: the output of native attention that is the same memory
TENSORRT_DOMAIN = "trt"  # of the operators that TensorRT's own parser adds to ONNX
PLUGIN = Plugin(name="GreedyWalk", namespace="lilicorr", version="1")  # the walk's node in scorer.onnx

Interface = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]


def native_rows(manifest: Manifest) -> int:
    """C of a bundle with native attention: beyond the context, a call's rows and the drafter's block are written as well."""
    block = manifest.drafter.block_size
    return manifest.limits.max_context + max(manifest.limits.prefill_chunk, block) + block


def expected_interfaces(manifest: Manifest) -> dict[str, Interface]:
    """Inputs and outputs of every component this bundle must have."""
    real = FLOATS[manifest.precision]
    target, drafter = manifest.target, manifest.drafter
    hidden, slots, topk = target.hidden_size, drafter.block_size - 1, drafter.candidate_topk
    features = len(drafter.target_layer_ids) * hidden
    native = manifest.attention == NATIVE
    rows: int | str = native_rows(manifest) if native else "C"

    def ints(name: str, *shape: int | str) -> Tensor:
        return Tensor(name, "int32", shape)

    def returned(cache: Cache, width: str) -> tuple[Tensor, ...]:
        return _rows(UPDATED + "{}_cache_{}", cache, rows) if native else _rows("new_{}_{}", cache, width)

    candidates = (
        ints("candidate_ids", "N", slots, topk),
        Tensor("log_probs", "float32", ("N", slots, topk)),
        Tensor("hidden", real, ("N", slots, hidden)),
        Tensor("anchor_row", real, ("N", hidden)),
    )
    interfaces: dict[str, Interface] = {
        "target": (
            (ints("tokens", "N", "T"), ints("lengths", "N"), *_rows("{}_cache_{}", target.cache, rows)),
            (
                Tensor("logits", "float32", ("N", "T", target.vocab_size)),
                ints("next_ids", "N", "T"),
                Tensor("features", real, ("N", "T", features)),
                *returned(target.cache, "T"),
            ),
        ),
        "drafter": (
            (
                ints("anchor", "N"),
                Tensor("features", real, ("N", "M", features)),
                ints("count", "N"),
                ints("lengths", "N"),
                *_rows("{}_cache_{}", drafter.cache, rows),
            ),
            (*candidates, *returned(drafter.cache, "M")),
        ),
    }
    if manifest.head is not None:
        scores = (
            Tensor("start", "float32", ("N", topk)),
            Tensor("pair", "float32", ("N", slots - 1, topk, topk)),
        )
        interfaces["scorer"] = (candidates, (ints("draft_tokens", "N", slots), ints("path", "N", slots), *scores))
    return interfaces


def interface_problems(name: str, component: Component, expected: Interface) -> list[str]:
    """Every difference between a recorded component and the contract, one line each."""
    problems = []
    for kind, found, wanted in (("input", component.inputs, expected[0]), ("output", component.outputs, expected[1])):
        by_name = {tensor.name: tensor for tensor in found}
        problems += [f"{name}: no {kind} `{t.name}`" for t in wanted if t.name not in by_name]
        names = {tensor.name for tensor in wanted}
        problems += [f"{name}: unexpected {kind} `{other}`" for other in by_name if other not in names]
        for tensor in wanted:
            other = by_name.get(tensor.name, tensor)
            if (other.dtype, other.shape) != (tensor.dtype, tensor.shape):
                problems.append(
                    f"{name}: {kind} `{tensor.name}` is {other.dtype} {list(other.shape)}, "
                    f"expected {tensor.dtype} {list(tensor.shape)}"
                )
    return problems


def _rows(pattern: str, cache: Cache, rows: int | str) -> tuple[Tensor, ...]:
    shape = ("N", cache.kv_heads, rows, cache.head_dim)
    return tuple(Tensor(pattern.format(kind, i), cache.dtype, shape) for i in range(cache.layers) for kind in "kv")
