"""Co-training of drafter and head on the target's own responses, one process on CPU or one GPU.

Every step is a function of (recipe, step number): the order of sequences and the anchors are drawn from seeds, so a resumed run
does exactly what an uninterrupted one does. Not here: several processes, other heads, left-to-right objectives.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lilicorr.runtime.errors import UserError
from lilicorr.train import state
from lilicorr.train.checkpoint import write_drafter
from lilicorr.train.data import Conversation, frequent_tokens, read_sequences, split
from lilicorr.train.drafter import Drafter
from lilicorr.train.features import FeatureCache
from lilicorr.train.objective import Blocks, drafter_loss, head_terms
from lilicorr.train.recipe import Recipe, read_recipe
from lilicorr.train.target import embedding_table, lm_head_table, load_target
from lilicorr.train.tokenizer_map import map_sha256, read_map


def fit(recipe_path: Path | str, overrides: Sequence[str] = ()) -> Path:
    """Train as the recipe says; resumes from `out` when it holds an unfinished run of the same recipe.

    Returns:
        The folder of the finished drafter (bf16), `out/drafter`. `out/log.jsonl` has one line per logged step.

    Raises:
        UserError: an unusable recipe or data, another recipe's run in `out`, or a loss that is not finite.
    """
    recipe = read_recipe(recipe_path, overrides)
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    trainer = Trainer(recipe)
    stop = _StopSignal()
    while trainer.step < recipe.steps and not stop.asked:
        trainer.train_step()
        if trainer.step % recipe.save_every == 0:
            trainer.save()
    trainer.save()
    if stop.asked:
        print(f"stopped at step {trainer.step}; the same command resumes", file=sys.stderr)
        raise SystemExit(130)
    return trainer.finish()


class _StopSignal:
    """SIGTERM and SIGINT ask for a stop after the current step, so that the state is saved."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, *_: Any) -> None:
        self.asked = True


class Trainer:
    """Model, optimiser, data and step counter of one run."""

    def __init__(self, recipe: Recipe):
        from transformers import AutoTokenizer

        self.recipe, self.out = recipe, Path(recipe.out)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        half = self.device.type == "cuda" and recipe.bf16
        target = load_target(recipe.target, torch.bfloat16 if half else torch.float32)
        target.to(self.device)
        tokenizer = AutoTokenizer.from_pretrained(recipe.target, local_files_only=True)
        sequences = read_sequences(
            recipe.responses, tokenizer, max_length=recipe.max_length, block_size=recipe.drafter.block_size
        )
        self.train_set, self.dev_set = split(sequences, recipe.held_out)
        if not self.train_set:
            raise UserError(
                f"all {len(self.dev_set)} sequences are held out, none is left to train on",
                hint="lower held_out or regenerate more responses",
            )
        kept = None
        if recipe.drafter.draft_vocab_size is not None:
            kept = frequent_tokens(self.train_set, recipe.drafter.draft_vocab_size, always=[tokenizer.eos_token_id])
        torch.manual_seed(recipe.seed)
        self.drafter = Drafter(recipe.drafter_config(target.config, kept))
        if kept is not None:
            self.drafter.d2t = torch.tensor(kept) - torch.arange(len(kept))
        self.drafter.to(self.device)
        config = self.drafter.config
        rows = torch.arange(config.output_size) if kept is None else torch.tensor(kept)
        self.to_draft = torch.full((config.vocab_size,), -1, device=self.device)
        self.to_draft[rows] = torch.arange(len(rows), device=self.device)
        self.embeddings = embedding_table(target)
        self.draft_embeddings = self.embeddings[rows].clone()
        # The frozen vocabulary product reads bf16 rows under bf16 compute: half the memory traffic of the largest matmul.
        self.output_rows = lm_head_table(target)[rows].to(torch.bfloat16 if recipe.bf16 else torch.float32)
        self.cache = FeatureCache(
            target, str(recipe.target), config.target_layer_ids, self.out / "features", bf16=recipe.bf16
        )
        self.optimiser = torch.optim.AdamW(
            self.drafter.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay, betas=(0.9, 0.95)
        )
        self.step = state.load(self.out, recipe, self.drafter, self.optimiser)
        self.started, self.first = time.monotonic(), self.step
        blocks = sum(len(s.ids) - s.answer for s in self.train_set)
        print(
            f"{len(self.train_set)} sequences, {blocks} answer tokens, {len(self.dev_set)} held out; "
            f"{sum(p.numel() for p in self.drafter.parameters()) / 1e6:.1f} M parameters; step {self.step} of {recipe.steps}",
            file=sys.stderr,
        )

    def train_step(self) -> None:
        """One optimiser step over `sequences_per_step` sequences."""
        recipe = self.recipe
        for group in self.optimiser.param_groups:
            group["lr"] = recipe.learning_rate * schedule(self.step, recipe.steps, recipe.warmup)
        sums: dict[str, float] = {}
        for index, item in enumerate(self._sequences(self.step)):
            generator = torch.Generator().manual_seed((recipe.seed * 1_000_003 + self.step) * 1009 + index)
            loss, values = self.losses(item, generator)
            (loss / recipe.sequences_per_step).backward()
            for name, value in values.items():
                sums[name] = sums.get(name, 0.0) + value / recipe.sequences_per_step
        norm = torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), recipe.max_grad_norm)
        sums["grad_norm"] = float(norm)
        bad = [name for name, value in sums.items() if not math.isfinite(value)]
        if bad:
            raise UserError(
                f"step {self.step}: {', '.join(bad)} is not finite; the state saved last is untouched",
                hint="lower learning_rate or max_grad_norm and choose another `out`: a run keeps its recipe",
            )
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.step += 1
        if self.step % 20 == 0 or self.step == recipe.steps:
            self._log(sums | {"lr": self.optimiser.param_groups[0]["lr"]})

    def _sequences(self, step: int) -> Iterator[Conversation]:
        """The sequences of a step: a seeded permutation per epoch."""
        size = self.recipe.sequences_per_step
        for position in range(step * size, (step + 1) * size):
            epoch, offset = divmod(position, len(self.train_set))
            generator = torch.Generator().manual_seed(self.recipe.seed + epoch)
            yield self.train_set[int(torch.randperm(len(self.train_set), generator=generator)[offset])]

    def blocks(self, item: Conversation, anchors: Tensor) -> Blocks:
        """Run the drafter on the blocks that start at `anchors` (A,) of one sequence."""
        config, length = self.drafter.config, len(item.ids)
        features, target_hidden = (t.to(self.device) for t in self.cache.get(item))
        ids = torch.tensor(item.ids, device=self.device)
        context = self.drafter.context(features.float()[None])
        masks = self.embeddings[config.mask_token_id].expand(len(anchors), config.slots, -1)
        inputs = torch.cat([self.embeddings[ids[anchors]][:, None], masks], dim=1)
        hidden = self.drafter(inputs[None].float(), context, anchors[None])[0, :, 1:]
        positions = anchors[:, None] + 1 + torch.arange(config.slots, device=self.device)
        inside = positions.clamp_max(length - 1)
        return Blocks(
            hidden=hidden,
            gold=self.to_draft[ids[inside]],
            supervised=(positions < length) & (positions >= item.answer),
            target_hidden=target_hidden[inside - 1].float(),
            anchor_row=context[0, anchors - 1],
        )

    def losses(self, item: Conversation, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        """Total loss of one sequence's sampled blocks, and every term and metric as a number."""
        recipe, weights = self.recipe, self.recipe.objective
        # Anchors with a supervised anchor and next token (the first anchor is the answer's first token); the tail is masked.
        choices = torch.arange(item.answer, len(item.ids) - 1)
        picked = torch.randperm(len(choices), generator=generator)[: recipe.anchors_per_sequence]
        anchors = choices[picked.sort().values].to(self.device)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=recipe.bf16):
            blocks = self.blocks(item, anchors)
            logits = F.linear(blocks.hidden, self.output_rows)
            target_logits = F.linear(blocks.target_hidden, self.output_rows) if weights.soft else None
            loss = drafter_loss(logits, target_logits, blocks, weights)
            values = {"drafter": loss.item()}
            if self.drafter.head is not None:
                terms, metrics = head_terms(
                    self.drafter.head, logits, self.draft_embeddings, self.output_rows, blocks, weights
                )
                scale = {"ce": weights.head_ce, "margin": weights.head_margin, "penalty": weights.head_penalty}
                loss = loss + sum(scale[name] * term for name, term in terms.items())
                values |= {name: value.item() for name, value in (terms | metrics).items()}
        return loss, values | {"loss": loss.item()}

    @torch.no_grad()
    def development(self, limit: int = 32) -> dict[str, float]:
        """Terms and metrics on held-out sequences, the same anchors every time."""
        totals: dict[str, float] = {}
        items = self.dev_set[:limit]
        for index, item in enumerate(items):
            _, values = self.losses(item, torch.Generator().manual_seed(index))
            for name, value in values.items():
                totals[f"dev_{name}"] = totals.get(f"dev_{name}", 0.0) + value / len(items)
        return totals

    def _log(self, values: dict[str, float]) -> None:
        recipe = self.recipe
        seconds = time.monotonic() - self.started
        rate = (self.step - self.first) / seconds
        if self.step % 200 == 0 or self.step == recipe.steps:
            values = values | self.development()
        tokens = recipe.sequences_per_step * recipe.anchors_per_sequence * recipe.drafter.block_size
        values |= {"step": self.step, "block_tokens_per_second": rate * tokens}
        with (self.out / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({name: round(value, 5) for name, value in values.items()}) + "\n")
        shown = " ".join(f"{name} {value:.3f}" for name, value in values.items() if name not in ("step", "lr"))
        left = (recipe.steps - self.step) / rate
        print(f"step {self.step}/{recipe.steps} {shown} | {left / 60:.0f} min left", file=sys.stderr, flush=True)

    def save(self) -> None:
        state.save(self.out, self.recipe, self.drafter, self.optimiser, self.step)

    def finish(self) -> Path:
        """Write the drafter in bf16, its recipe and log beside it, and in its config.json what it was made with."""
        folder = self.out / "drafter"
        extra = self.drafter.config.extra | {"lilicorr_provenance": self._provenance()}
        self.drafter.config = dataclasses.replace(self.drafter.config, extra=extra)
        write_drafter(self.drafter.to(torch.bfloat16), folder)
        (folder / "recipe.json").write_text(
            json.dumps(dataclasses.asdict(self.recipe), indent=1) + "\n", encoding="utf-8"
        )
        shutil.copyfile(self.out / "log.jsonl", folder / "log.jsonl")
        return folder

    def _provenance(self) -> dict[str, Any]:
        """The tokenizer's map (the pair check compares it), the data's hash, and versions."""
        data = hashlib.sha256(repr([item.ids for item in self.train_set]).encode()).hexdigest()
        packages = {name: version(name) for name in ("lilicorr", "torch", "transformers")}
        tokens = read_map(Path(self.recipe.target) / "tokenizer.json")
        return {"tokenizer_sha256": map_sha256(tokens), "training_sequences_sha256": data, "packages": packages}


def schedule(step: int, steps: int, warmup: float) -> float:
    """Factor on the learning rate: linear warm-up over `warmup` of the steps, then cosine to zero."""
    rise = max(1, round(steps * warmup))
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))
