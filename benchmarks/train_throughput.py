"""Trained block tokens per second and peak memory of the trainer's step, against a straightforward dense step, in one run.

    python benchmarks/train_throughput.py recipes/smollm2-135m.yaml
    python benchmarks/train_throughput.py recipes/smollm2-135m.yaml --set anchors_per_sequence=128 --set logit_rows=128

Geometry, objective and precision are the recipe's; the target is random tables of SmolLM2-135M's shape and the features of its
texts are random too, as neither changes the cost of a step. Each implementation runs in a process of its own, the two interleaved.
Memory is the peak of loss and gradient above weights, gradients and optimiser state. A step is one text: loss, gradient, AdamW. The
last line of stdout is one JSON object.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click

HIDDEN, LAYERS, VOCAB = 576, 30, 49152  # SmolLM2-135M
WARM_ANCHORS = 2


@click.command()
@click.argument("recipe", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Replace one value of the recipe.")
@click.option("--steps", default=5, show_default=True, help="Timed steps per process.")
@click.option("--repeats", default=2, show_default=True, help="Processes per implementation.")
@click.option("--threads", default=1, show_default=True)
@click.option("--child", type=click.Choice(["ours", "dense"]), hidden=True)
def main(recipe: Path, overrides: tuple[str, ...], steps: int, repeats: int, threads: int, child: str | None) -> None:
    if child is not None:
        click.echo(json.dumps(measure(child, recipe, overrides, steps, threads)))
        return
    runs: dict[str, list[dict[str, float]]] = {"ours": [], "dense": []}
    for _ in range(repeats):
        for name, results in runs.items():
            done = subprocess.run(
                [sys.executable, __file__, *sys.argv[1:], "--child", name],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            results.append(json.loads(done.stdout.splitlines()[-1]))
    report: dict[str, Any] = {name: summarise(results) for name, results in runs.items()}
    report["speedup"] = report["ours"]["block_tokens_per_second"] / report["dense"]["block_tokens_per_second"]
    report["memory_ratio"] = report["ours"]["peak_mib"] / report["dense"]["peak_mib"]
    for name in runs:
        print(
            f"{name:6} {report[name]['block_tokens_per_second']:9.0f} block tokens/s {report[name]['peak_mib']:8.0f} MiB"
        )
    print(f"speed-up {report['speedup']:.2f}, memory {report['memory_ratio']:.2f} of the dense step's")
    print(json.dumps(report))


def summarise(results: list[dict[str, float]]) -> dict[str, float]:
    """The median speed, and the largest peak."""
    return {
        "block_tokens_per_second": statistics.median(r["block_tokens_per_second"] for r in results),
        "peak_mib": max(r["peak_mib"] for r in results),
        "loss": results[0]["loss"],
    }


def measure(name: str, path: Path, overrides: tuple[str, ...], steps: int, threads: int) -> dict[str, float]:
    import torch

    from lilicorr.train.recipe import read_recipe

    torch.set_num_threads(threads)
    recipe = read_recipe(path, overrides)
    trainer, item, lm_head = random_trainer(recipe)
    generator = torch.Generator()

    def loss(seed: int) -> Any:
        if name == "ours":
            return trainer.losses(item, generator.manual_seed(seed))[0]
        from benchmarks.dense_step import dense_loss

        return dense_loss(trainer, lm_head, item, generator.manual_seed(seed))

    trainer.recipe = dataclasses.replace(recipe, anchors_per_sequence=WARM_ANCHORS)
    loss(0).backward()
    trainer.optimiser.step()
    trainer.recipe = recipe
    trainer.optimiser.zero_grad(set_to_none=False)
    peak = Peak(trainer.device)
    first = loss(1)
    first.backward()
    peak_bytes = peak.bytes()
    seconds = []
    for seed in range(steps):
        began = time.perf_counter()
        loss(seed).backward()
        trainer.optimiser.step()
        trainer.optimiser.zero_grad(set_to_none=False)
        synchronise(trainer.device)
        seconds.append(time.perf_counter() - began)
    tokens = recipe.anchors_per_sequence * recipe.drafter.block_size
    return {
        "block_tokens_per_second": tokens / statistics.median(seconds),
        "peak_mib": peak_bytes / 2**20,
        "loss": first.item(),
    }


def random_trainer(recipe: Any) -> tuple[Any, Any, Any]:
    """A trainer without target folder or data, one text as long as the recipe allows, and the target's lm_head."""
    import torch
    from transformers import LlamaConfig

    from lilicorr.train.conversation import Conversation
    from lilicorr.train.drafter import Drafter
    from lilicorr.train.trainer import Trainer

    class Bare(Trainer):
        def __init__(self) -> None:
            self.recipe, self.step = recipe, 0
            self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            target = LlamaConfig(
                hidden_size=HIDDEN, num_hidden_layers=LAYERS, vocab_size=VOCAB, max_position_embeddings=8192
            )
            torch.manual_seed(recipe.seed)
            size = recipe.drafter.draft_vocab_size
            kept = None if size is None else list(range(size))
            self.drafter = Drafter(recipe.drafter_config(target, kept)).to(self.device)
            self.embeddings = torch.randn(VOCAB, HIDDEN, device=self.device) * 0.1
            tables = self.drafter.tables(self.embeddings, self.embeddings)
            half = torch.bfloat16 if recipe.bf16 else torch.float32
            self.tables = type(tables)(self.embeddings, tables.rows.to(half), tables.target_ids)
            kept_ids = torch.arange(self.drafter.config.output_size, device=self.device)
            self.to_draft = torch.full((VOCAB,), -1, device=self.device)
            self.to_draft[kept_ids] = kept_ids
            self.optimiser = torch.optim.AdamW(self.drafter.parameters(), lr=1e-4)
            length = recipe.max_length
            width = len(self.drafter.config.target_layer_ids) * HIDDEN
            rows = (torch.randn(length, width).bfloat16(), torch.randn(length, HIDDEN).bfloat16())
            self.cache = type("Features", (), {"get": staticmethod(lambda item: rows)})()

    trainer = Bare()
    ids = torch.randint(trainer.drafter.config.output_size, (recipe.max_length,)).tolist()
    answer = (recipe.max_length // 5, recipe.max_length)  # a fifth of the text is the question, as in chat data
    return trainer, Conversation("random", tuple(ids), (answer,)), trainer.embeddings


class Peak:
    """Counts from its making on: the allocator's peak on a GPU, the process's peak resident memory on Linux otherwise."""

    def __init__(self, device: Any):
        self.cuda = device.type == "cuda"
        if self.cuda:
            import torch

            torch.cuda.reset_peak_memory_stats()
            self.base = torch.cuda.memory_allocated()
        else:
            Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
            self.base = _status("VmRSS")

    def bytes(self) -> int:
        if self.cuda:
            import torch

            return torch.cuda.max_memory_allocated() - self.base
        return _status("VmHWM") - self.base


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


def synchronise(device: Any) -> None:
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))  # for benchmarks.dense_step
    main()
