"""One round in plain torch on this GPU: drafter, head and verification, and the head's share of the block's latency.

    python benchmarks/device_round.py

The published geometry with random weights in bf16, the largest target that fits: Qwen3-8B, Qwen3-4B or SmolLM2-135M shaped; five
drafter layers, blocks of 16, eight candidates, a head of width 1024 (576 for SmolLM2). Weights change no time. Each stage is timed
alone, eager and captured in a CUDA graph (the eager head is bound by launches). Last line of stdout: one JSON object.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import click
from device_torch import why_not

GIB = 1 << 30
# hidden, layers, heads, KV heads, head dimension, FFN, vocabulary, captured layers, free memory it needs
SHAPES = {
    "qwen3-8b": (4096, 36, 32, 8, 128, 12288, 151936, (1, 9, 17, 25, 33), 30 * GIB),
    "qwen3-4b": (2560, 36, 32, 8, 128, 9728, 151936, (1, 9, 17, 25, 33), 16 * GIB),
    "smollm2-135m": (576, 30, 9, 3, 64, 1536, 49152, (1, 7, 14, 20, 27), 2 * GIB),
    "tiny": (32, 4, 4, 2, 8, 64, 300, (1, 2), 0),
}
BLOCK, CANDIDATES = 16, 8


@click.command()
@click.option("--shape", type=click.Choice([*SHAPES]), help="[default: the largest that fits]")
@click.option("--context", default=512, show_default=True, help="committed tokens")
@click.option("--repeats", default=30, show_default=True)
@click.option("--device", default="cuda", show_default=True)
def main(shape: str | None, context: int, repeats: int, device: str) -> None:
    if reason := why_not(device):
        click.echo(json.dumps({"skipped": reason}))
        return
    import torch

    with torch.inference_mode():
        name = shape or largest(torch.cuda.mem_get_info()[0])
        stages = build_stages(name, context, device)
        report = {
            "shape": name,
            "device": torch.cuda.get_device_name() if device == "cuda" else device,
            "torch": torch.__version__,
            "block": BLOCK,
            "context": context,
            "eager": shares({stage: median_ms(call, repeats, device) for stage, call in stages.items()}),
        }
        if device == "cuda":
            report["captured"] = captured(stages, repeats)
    click.echo(json.dumps(report))


def largest(free: int) -> str:
    return next(name for name, (*_, needed) in SHAPES.items() if needed <= free)


def build_stages(name: str, context_rows: int, device: str) -> dict[str, Callable[[], Any]]:
    """The three stages on fixed inputs: "draft" to the candidates, "head" to the tokens, "verify" a block over a full cache."""
    import torch
    from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

    from lilicorr.train.config import DrafterConfig, HeadConfig
    from lilicorr.train.drafter import Drafter
    from lilicorr.train.walk import greedy_walk

    hidden, layers, heads, kv_heads, head_dim, ffn, vocab, captured_layers, _ = SHAPES[name]
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16 if device == "cuda" else torch.float32)
    with torch.device(device):
        target = Qwen3ForCausalLM(
            Qwen3Config(
                hidden_size=hidden,
                num_hidden_layers=layers,
                num_attention_heads=heads,
                num_key_value_heads=kv_heads,
                head_dim=head_dim,
                intermediate_size=ffn,
                vocab_size=vocab,
                max_position_embeddings=8192,
            )
        ).eval()
        width = min(1024, hidden)
        drafter = Drafter(
            DrafterConfig(
                hidden_size=hidden,
                num_hidden_layers=5 if name != "tiny" else 2,
                num_attention_heads=heads,
                num_key_value_heads=kv_heads,
                head_dim=head_dim,
                intermediate_size=ffn,
                rms_norm_eps=1e-6,
                vocab_size=vocab,
                max_position_embeddings=8192,
                rope={"rope_theta": 1e6, "rope_type": "default"},
                block_size=BLOCK,
                mask_token_id=vocab - 1,
                target_layer_ids=captured_layers,
                num_target_layers=layers,
                head=HeadConfig(
                    candidate_topk=CANDIDATES,
                    hidden_size=width,
                    num_layers=2,
                    num_heads=8,
                    mlp_ratio=2.0,
                    factor_dim=width,
                    vector_eps=1e-4,
                    logit_scale=8.0,
                ),
            )
        ).eval()
        embeddings, lm_head = target.get_input_embeddings().weight, target.get_output_embeddings().weight
        fused = torch.randn(1, context_rows, hidden)
        block_ids = torch.randint(vocab - 1, (1, BLOCK))
        anchors = torch.tensor([[context_rows]])
        cache = target(torch.randint(vocab - 1, (1, context_rows)), use_cache=True).past_key_values
        committed = [(layer.keys, layer.values) for layer in cache.layers]

    def draft() -> Any:
        rows = drafter(embeddings[block_ids][:, None], fused, anchors)[:, 0, 1:]
        return rows, *drafter.candidates(rows, lm_head)

    rows, ids, log_probs = draft()

    def head() -> Any:
        start, pair = drafter.head(embeddings[ids], log_probs, rows, fused[:, -1])
        return ids.gather(-1, greedy_walk(start, pair).long()[..., None]).squeeze(-1)

    def verify() -> Any:
        past = DynamicCache()
        for index, (keys, values) in enumerate(committed):
            past.update(keys, values, index)
        return target(block_ids, past_key_values=past, use_cache=True).logits.argmax(-1)

    return {"draft": draft, "head": head, "verify": verify}


def captured(stages: dict[str, Callable[[], Any]], repeats: int) -> dict[str, Any]:
    """The same stages replayed from CUDA graphs: what the GPU itself needs."""
    import torch

    times = {}
    for stage, call in stages.items():
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                call()
        except RuntimeError as error:
            return {"failed": f"{stage}: {str(error).splitlines()[0]}"}
        times[stage] = median_ms(graph.replay, repeats, "cuda")
    return shares(times)


def shares(times: dict[str, float]) -> dict[str, float]:
    """Milliseconds per stage, and the head's share of drafting alone and of the whole round."""
    drafting = times["draft"] + times["head"]
    return {f"{stage}_ms": ms for stage, ms in times.items()} | {
        "head_share_of_draft": times["head"] / drafting,
        "head_share_of_round": times["head"] / (drafting + times["verify"]),
    }


def median_ms(call: Callable[[], Any], repeats: int, device: str) -> float:
    import torch

    times = []
    for index in range(repeats + 5):
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        if index >= 5:
            times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times)


if __name__ == "__main__":
    main()
