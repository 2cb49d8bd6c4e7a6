"""What a LiLiCorr head learns on a drafter as it is, for many heads and objectives: blocks and candidates are made once and kept.

    python benchmarks/head_ablation.py recipes/study.yaml

Every variant sees the same 64 blocks a step, drawn from all kept sequences, and is measured on blocks of held-out sequences.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click
import torch
from torch import Tensor, nn

from lilicorr.train.config import HeadConfig
from lilicorr.train.conversation import Conversation
from lilicorr.train.heads import Stage, embed, pick_blocks
from lilicorr.train.lilicorr import LiLiCorrHead
from lilicorr.train.objective import Blocks, Weights, lattice_terms
from lilicorr.train.recipe import read_recipe
from lilicorr.train.trainer import Trainer, schedule
from lilicorr.train.vocabulary import Picked

TOPK = 16  # kept per slot; a variant reads the first K of them
HEAD = HeadConfig(
    8, hidden_size=192, num_layers=2, num_heads=4, mlp_ratio=2.0, factor_dim=192, vector_eps=1e-4, logit_scale=8.0
)
SOFT = {"head_soft": 1.0, "head_ce": 0.0, "head_penalty": 0.0}
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, float]]] = {
    "published objective": ({}, {}),
    "published token rows": ({"published_init": True}, {}),
    "margin": ({}, {"head_ce": 0.125, "head_margin": 0.125}),
    "target's choice": ({}, SOFT),
    "first error": ({}, {"head_first_error": 0.3}),
    "chain": ({}, {"head_chain": 2.0}),
    "target's choice, chain": ({}, SOFT | {"head_chain": 2.0}),
    "K 4": ({"candidate_topk": 4}, {}),
    "K 16": ({"candidate_topk": 16}, {}),
    "width 96": ({"hidden_size": 96}, {}),
    "width 384": ({"hidden_size": 384}, {}),
    "one layer": ({"num_layers": 1}, {}),
    "factor width 64": ({"factor_dim": 64}, {}),
    "logit scale 16": ({"logit_scale": 16.0}, {}),
    "one layer, factor width 64, target's choice, chain": (
        {"num_layers": 1, "factor_dim": 64},
        SOFT | {"head_chain": 2.0},
    ),
}


@dataclass(frozen=True)
class Kept:
    """Blocks of many sequences and their TOPK candidates: ids and log-probs (N, S, TOPK)."""

    blocks: Blocks
    ids: Tensor
    log_probs: Tensor

    def __getitem__(self, index: Tensor | slice) -> Kept:
        fields = {f.name: getattr(self.blocks, f.name)[index] for f in dataclasses.fields(Blocks)}
        return Kept(Blocks(**fields), self.ids[index], self.log_probs[index])

    def __len__(self) -> int:
        return len(self.ids)

    def picked(self, topk: int) -> Picked:
        ids, log_probs = (t[..., :topk].flatten(0, 1) for t in (self.ids, self.log_probs))
        return Picked(log_probs[:, 0], ids, log_probs, log_probs[:, 0])  # the drafter's own terms are not made


@torch.no_grad()
def keep(trainer: Trainer, items: Sequence[Conversation], anchors: int) -> Kept:
    parts = []
    for index, item in enumerate(items):
        choices = torch.tensor(item.anchors)
        picked = torch.randperm(len(choices), generator=torch.Generator().manual_seed(index))[:anchors]
        blocks = trainer.blocks(item, choices[picked.sort().values])
        best = pick_blocks(blocks, trainer.tables, TOPK, Weights(), Stage(0.0, 2048))
        shape = (*blocks.gold.shape, TOPK)
        parts.append(Kept(blocks, best.ids.view(shape), best.log_probs.view(shape)))
    fields = {f.name: torch.cat([getattr(p.blocks, f.name) for p in parts]) for f in dataclasses.fields(Blocks)}
    return Kept(Blocks(**fields), torch.cat([p.ids for p in parts]), torch.cat([p.log_probs for p in parts]))


def terms(head: LiLiCorrHead, part: Kept, trainer: Trainer, weights: Weights) -> tuple[Any, dict[str, Tensor]]:
    picked, tables = part.picked(head.candidate_topk), trainer.tables
    lattice = embed(tables, tables.to_target(picked.ids)).view(*part.blocks.gold.shape, head.candidate_topk, -1)
    return lattice_terms(head, picked, lattice, tables.rows, part.blocks, weights)


def train(
    trainer: Trainer, kept: Kept, steps: int, seed: int, changes: dict[str, Any], weights: Weights
) -> LiLiCorrHead:
    torch.manual_seed(seed)
    published = changes.pop("published_init", False)
    config = dataclasses.replace(trainer.drafter.config, head=dataclasses.replace(HEAD, **changes))
    head = LiLiCorrHead.from_config(config)
    if not published:
        head.initialise(trainer.embeddings)
    optimiser = torch.optim.AdamW(head.parameters(), lr=1e-3, weight_decay=0.0, betas=(0.9, 0.95))
    for step, index in zip(range(steps), batches(len(kept), seed), strict=False):
        optimiser.param_groups[0]["lr"] = 1e-3 * schedule(step, steps, 0.04)
        made, _ = terms(head, kept[index], trainer, weights)
        torch.stack([weight * value for weight, value in made.values()]).sum().backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
    return head


def batches(count: int, seed: int, size: int = 64) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield from torch.randperm(count, generator=generator)[: count // size * size].split(size)


@torch.no_grad()
def measure(trainer: Trainer, head: LiLiCorrHead, kept: Kept) -> dict[str, float]:
    """Mean prefixes over all blocks of the held-out sequences, see `prefix_metrics`."""
    parts = [kept[slice(begin, begin + 256)] for begin in range(0, len(kept), 256)]
    sums: dict[str, float] = {}
    for part in parts:
        made, metrics = terms(head, part, trainer, Weights())
        blocks = part.blocks.supervised.all(-1).sum().item()
        values = {name: metrics[name].item() for name in ("selected_prefix", "top1_prefix", "oracle_prefix")}
        for name, value in {"blocks": 1.0, **values, "ce": made["ce"][1].item()}.items():
            sums[name] = sums.get(name, 0.0) + value * blocks
    count = sums.pop("blocks")
    return {name: round(value / count, 4) for name, value in sums.items()}


@click.command()
@click.argument("recipe", type=click.Path(exists=True))
@click.option("--sequences", default=400, show_default=True)
@click.option("--steps", default=250, show_default=True)
@click.option("--seed", default=0, show_default=True, help="Of the head's weights and of the order of blocks.")
@click.option("--only", multiple=True, help="Names of variants; all of them otherwise.")
def main(recipe: str, sequences: int, steps: int, seed: int, only: tuple[str, ...]) -> None:
    """One JSON line per variant."""
    torch.set_num_threads(1)
    trainer = Trainer(read_recipe(recipe, ["out=build/study/head-ablation"]))
    trainer.drafter.eval()
    order = torch.randperm(len(trainer.train_set), generator=torch.Generator().manual_seed(42))[:sequences].tolist()
    held_out, kept = keep(trainer, trainer.dev_set, 48), keep(trainer, [trainer.train_set[i] for i in order], 48)
    for name, (changes, weights) in VARIANTS.items():
        if only and name not in only:
            continue
        begin = time.monotonic()
        head = train(trainer, kept, steps, seed, dict(changes), Weights(**weights))
        parameters = sum(p.numel() for p in head.parameters())
        result = {"variant": name, "seed": seed, "parameters": parameters, "seconds": round(time.monotonic() - begin)}
        click.echo(json.dumps(result | measure(trainer, head, held_out)))


if __name__ == "__main__":
    main()
