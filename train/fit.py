"""Co-training of drafter and head on the target's own responses: one process on CPU or GPU, or several (`accelerate launch`).

    lilicorr-train fit recipes/smollm2-135m.yaml
    accelerate launch --num_processes 2 --cpu -m lilicorr.train.cli fit recipes/smollm2-135m.yaml

A resumed run does exactly what an uninterrupted one does, and several processes do what one does, up to rounding.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from lilicorr.train.checkpoint import write_drafter
from lilicorr.train.conversation import sequences_sha256
from lilicorr.train.recipe import read_recipe
from lilicorr.train.tokenizer_map import map_sha256, read_map
from lilicorr.train.trainer import Trainer


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
    stopped = False
    while trainer.step < recipe.steps and not stopped:
        trainer.train_step()
        if trainer.step % recipe.save_every == 0:
            trainer.save()
        stopped = trainer.processes.any(stop.asked)
    trainer.save()
    if stopped:
        print(f"stopped at step {trainer.step}; the same command resumes", file=sys.stderr)
        raise SystemExit(130)
    return finish(trainer)


class _StopSignal:
    """SIGTERM and SIGINT ask for a stop after the current step, so that the state is saved."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, *_: Any) -> None:
        self.asked = True


def finish(trainer: Trainer) -> Path:
    """Write the drafter in bf16, its recipe and log beside it, and in its config.json what it was made with."""
    folder = trainer.out / "drafter"
    if trainer.processes.is_main:
        extra = trainer.drafter.config.extra | {"lilicorr_provenance": _provenance(trainer)}
        trainer.drafter.config = dataclasses.replace(trainer.drafter.config, extra=extra)
        write_drafter(trainer.drafter.to(torch.bfloat16), folder)
        (folder / "recipe.json").write_text(
            json.dumps(dataclasses.asdict(trainer.recipe), indent=1) + "\n", encoding="utf-8"
        )
        shutil.copyfile(trainer.out / "log.jsonl", folder / "log.jsonl")
    trainer.processes.wait()
    return folder


def _provenance(trainer: Trainer) -> dict[str, Any]:
    """The tokenizer's map (the pair check compares it), the data's hash, the command line, and versions."""
    packages = {name: version(name) for name in ("lilicorr", "torch", "transformers")}
    tokens = read_map(Path(trainer.recipe.target) / "tokenizer.json")
    return {
        "tokenizer_sha256": map_sha256(tokens),
        "training_sequences_sha256": sequences_sha256(trainer.train_set),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "packages": packages,
    }
