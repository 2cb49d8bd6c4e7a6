"""A training run in memory: model, optimiser, data and step counter; one optimiser step and the losses on held-out sequences.

Every step is a function of (recipe, step number): the order of sequences and the anchors are drawn from seeds. `fit` runs them.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lilicorr.runtime.errors import UserError
from lilicorr.train import state
from lilicorr.train.checkpoint import read_drafter
from lilicorr.train.conversation import Conversation, sequences_sha256
from lilicorr.train.data import frequent_tokens, read_sequences, split
from lilicorr.train.drafter import Drafter
from lilicorr.train.features import FeatureCache, weights_sha256
from lilicorr.train.heads import Stage
from lilicorr.train.objective import Blocks
from lilicorr.train.processes import Processes
from lilicorr.train.recipe import Recipe
from lilicorr.train.run_log import RunLog
from lilicorr.train.target import embedding_table, lm_head_table, load_target
from lilicorr.train.warm_start import freeze_all_but_head, warm_start

LOG_EVERY, DEVELOPMENT_EVERY = 20, 200  # steps


class Trainer:
    """Model, optimiser, data and step counter of one run."""

    def __init__(self, recipe: Recipe):
        from transformers import AutoTokenizer

        self.recipe, self.out = recipe, Path(recipe.out)
        self.processes = Processes()
        self.device = self.processes.device
        if recipe.sequences_per_step < self.processes.count:
            raise UserError(
                f"sequences_per_step is {recipe.sequences_per_step}, fewer than the {self.processes.count} processes",
                hint=f"lilicorr-train fit … --set sequences_per_step={self.processes.count}",
            )
        target = load_target(recipe.target, torch.bfloat16 if recipe.bf16 else torch.float32)
        target.to(self.device)
        tokenizer = AutoTokenizer.from_pretrained(recipe.target, local_files_only=True)
        self.out.mkdir(parents=True, exist_ok=True)
        folder = Path(recipe.features) if recipe.features else self.out / "features"
        sequences = read_sequences(
            recipe.responses,
            tokenizer,
            max_length=recipe.max_length,
            block_size=recipe.drafter.block_size,
            cache=folder,
        )
        self.train_set, self.dev_set = split(sequences, recipe.held_out)
        if not self.train_set:
            raise UserError(
                f"all {len(self.dev_set)} sequences are held out, none is left to train on",
                hint="lower held_out or regenerate more responses",
            )
        self.drafter = self._new_drafter(target, tokenizer).to(self.device)
        config = self.drafter.config
        self.embeddings = embedding_table(target)
        # The frozen vocabulary product reads bf16 rows under bf16 compute: half the memory traffic of the largest matmul.
        tables = self.drafter.tables(self.embeddings, lm_head_table(target))
        precision = torch.bfloat16 if recipe.bf16 else torch.float32
        self.tables = dataclasses.replace(tables, rows=tables.rows.detach().to(precision))
        kept = torch.arange(config.output_size) if tables.target_ids is None else tables.target_ids
        self.to_draft = torch.full((config.vocab_size,), -1, device=self.device)
        self.to_draft[kept] = torch.arange(len(kept), device=self.device)
        target_sha256 = weights_sha256(recipe.target)
        features = folder if recipe.keep_features else None
        self.cache = FeatureCache(target, target_sha256, config.target_layer_ids, features, bf16=recipe.bf16)
        if recipe.head_only:
            freeze_all_but_head(self.drafter)
        self.trained = [p for p in self.drafter.parameters() if p.requires_grad]
        self.optimiser = torch.optim.AdamW(
            self._parameter_groups(), weight_decay=recipe.weight_decay, betas=(0.9, 0.95)
        )
        self.data = {
            "training sequences": f"{len(self.train_set)}, sha256 {sequences_sha256(self.train_set)[:16]}",
            "held-out sequences": f"{len(self.dev_set)}, sha256 {sequences_sha256(self.dev_set)[:16]}",
            "target weights": f"sha256 {target_sha256[:16]}",
        }
        self.step = state.load(self.out, recipe, self.data, self.drafter, self.optimiser)
        self.log = RunLog(self.out, recipe.steps, self.step, tensorboard=recipe.tensorboard and self.processes.is_main)
        answers = sum(len(s.answer_ids) for s in self.train_set)
        print(
            f"{len(self.train_set)} sequences, {answers} answer tokens, {len(self.dev_set)} held out; "
            f"{sum(p.numel() for p in self.trained) / 1e6:.1f} M parameters; step {self.step} of {recipe.steps}",
            file=sys.stderr,
        )

    def _new_drafter(self, target: Any, tokenizer: Any) -> Drafter:
        """With fresh weights, or those of `warm_start`, whose reduced vocabulary is kept."""
        recipe = self.recipe
        source = None if recipe.warm_start is None else read_drafter(recipe.warm_start).float()
        kept = None
        if source is not None and source.d2t is not None:
            kept = source.target_ids(torch.arange(len(source.d2t))).tolist()
        elif recipe.drafter.draft_vocab_size is not None:
            kept = frequent_tokens(self.train_set, recipe.drafter.draft_vocab_size, always=[tokenizer.eos_token_id])
        torch.manual_seed(recipe.seed)
        drafter = Drafter(recipe.drafter_config(target.config, kept))
        if kept is not None:
            drafter.d2t = torch.tensor(kept) - torch.arange(len(kept))
        drafter.drafting.initialise(embedding_table(target))
        if source is not None:
            warm_start(drafter, source)
        return drafter

    def _parameter_groups(self) -> list[dict[str, Any]]:
        """Drafter and head, each with the peak of its learning rate."""
        recipe, head = self.recipe, self.drafter.head
        own = {id(p) for p in head.parameters()} if head else set()
        rates = (
            recipe.learning_rate,
            recipe.learning_rate if recipe.head_learning_rate is None else recipe.head_learning_rate,
        )
        return [
            {"params": [p for p in self.trained if (id(p) in own) == is_head], "lr": rate, "peak": rate}
            for is_head, rate in enumerate(rates)
        ]

    def train_step(self) -> None:
        """One optimiser step; the gradients of its `sequences_per_step` sequences are accumulated one after the other."""
        recipe = self.recipe
        for group in self.optimiser.param_groups:
            group["lr"] = group["peak"] * schedule(self.step, recipe.steps, recipe.warmup)
        sums: dict[str, float] = {}
        for index, item in enumerate(self._sequences(self.step)):
            if index % self.processes.count != self.processes.rank:
                continue
            generator = torch.Generator().manual_seed((recipe.seed * 1_000_003 + self.step) * 1009 + index)
            loss, values = self.losses(item, generator)
            (loss / recipe.sequences_per_step).backward()
            for name, value in values.items():
                sums[name] = sums.get(name, 0.0) + value / recipe.sequences_per_step
        self.processes.sum_gradients(self.trained)
        sums = self.processes.sum_values(sums)
        sums["grad_norm"] = float(torch.nn.utils.clip_grad_norm_(self.trained, recipe.max_grad_norm))
        bad = [name for name, value in sums.items() if not math.isfinite(value)]
        if bad:
            raise UserError(
                f"step {self.step}: {', '.join(bad)} is not finite; the state saved last is untouched",
                hint="lower learning_rate or max_grad_norm and choose another `out`: a run keeps its recipe",
            )
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.step += 1
        if self.processes.is_main and (self.step % LOG_EVERY == 0 or self.step == recipe.steps):
            self._log(sums | {"lr": self.optimiser.param_groups[0]["lr"]})

    def _sequences(self, step: int) -> Iterator[Conversation]:
        """The sequences of a step: a seeded permutation per epoch."""
        size = self.recipe.sequences_per_step
        for position in range(step * size, (step + 1) * size):
            epoch, offset = divmod(position, len(self.train_set))
            generator = torch.Generator().manual_seed(self.recipe.seed + epoch)
            yield self.train_set[int(torch.randperm(len(self.train_set), generator=generator)[offset])]

    def blocks(self, item: Conversation, anchors: Tensor) -> Blocks:
        """Run the drafter on the blocks that start at `anchors` (A,), each in an answer of one sequence."""
        config, length = self.drafter.config, len(item.ids)
        features, target_hidden = (t.to(self.device) for t in self.cache.get(item))
        ids = torch.tensor(item.ids, device=self.device)
        context = self.drafter.context(features.float()[None])
        masks = self.embeddings[config.mask_token_id].expand(len(anchors), config.block_size - 1, -1)
        inputs = torch.cat([self.embeddings[ids[anchors]][:, None], masks], dim=1)
        hidden = self.drafter(inputs[None].float(), context, anchors[None])[0, :, config.first_row :]
        begins, ends = torch.tensor(item.answers, device=self.device).T
        own = (anchors[:, None] >= begins) & (anchors[:, None] < ends)  # (A, answers)
        positions = anchors[:, None] + 1 + torch.arange(config.trained_slots, device=self.device)
        inside = positions.clamp_max(length - 1)
        return Blocks(
            hidden=hidden,
            gold=self.to_draft[ids[inside]],
            supervised=positions < (own * ends).sum(-1, keepdim=True),  # to the end of the anchor's answer
            target_hidden=target_hidden[inside - 1].float(),
            anchor_row=context[0, anchors - 1],
            previous=ids[inside - 1],
        )

    def losses(self, item: Conversation, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        """Total loss of one sequence's sampled blocks, and every term and metric as a number."""
        recipe = self.recipe
        choices = torch.tensor(item.anchors)
        picked = torch.randperm(len(choices), generator=generator)[: recipe.anchors_per_sequence]
        anchors = choices[picked.sort().values].to(self.device)
        stage = Stage(self.step / recipe.steps, recipe.logit_rows)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=recipe.bf16):
            blocks = self.blocks(item, anchors)
            terms, metrics = self.drafter.drafting.terms(blocks, self.tables, recipe.objective, stage)
            loss = torch.stack([weight * value for weight, value in terms.values()]).sum()
        values = {name: value.item() for name, (_, value) in terms.items()}
        return loss, values | {name: value.item() for name, value in metrics.items()} | {"loss": loss.item()}

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
        tokens = recipe.sequences_per_step * recipe.anchors_per_sequence * recipe.drafter.block_size
        rate = self.log.steps_per_second(self.step) * tokens
        if self.step % DEVELOPMENT_EVERY == 0 or self.step == recipe.steps:
            values = values | self.development()
        self.log.write(self.step, values | {"block_tokens_per_second": rate})

    def save(self) -> None:
        if self.processes.is_main:
            state.save(self.out, self.recipe, self.data, self.drafter, self.optimiser, self.step)
        self.processes.wait()


def schedule(step: int, steps: int, warmup: float) -> float:
    """Factor on the learning rate: linear warm-up over `warmup` of the steps, then cosine to zero."""
    rise = max(1, round(steps * warmup))
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))
