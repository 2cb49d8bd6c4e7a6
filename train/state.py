"""The state of an unfinished training run: weights, optimiser moments and step, in one safetensors file (no pickle)."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
from pathlib import Path

import torch

from lilicorr.runtime.errors import UserError
from lilicorr.train.drafter import Drafter
from lilicorr.train.recipe import Recipe, recipe_from_dict

FILE = "state.safetensors"
# Recipe fields that may differ on resume; a run folder may be moved.
FREE = {"out", "features", "save_every", "threads", "logit_rows", "keep_states", "tensorboard"}


def save(out: Path, recipe: Recipe, drafter: Drafter, optimiser: torch.optim.Optimizer, step: int) -> None:
    """Write the state; the previous one stays until the new one is whole."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors = {f"model.{name}": tensor for name, tensor in drafter.state_dict().items()}
    for name, parameter in drafter.named_parameters():
        for key, value in optimiser.state.get(parameter, {}).items():
            tensors[f"optimiser.{name}.{key}"] = torch.as_tensor(value)
    metadata = {"step": str(step), "recipe": json.dumps(dataclasses.asdict(recipe))}
    temporary = out / f"{FILE}.{os.getpid()}"
    try:
        save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, temporary, metadata=metadata)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise UserError(f"the state cannot be saved in `{out}`: {error}; the one saved before is untouched") from None
    _rotate(out, recipe.keep_states, step)
    os.replace(temporary, out / FILE)


def _rotate(out: Path, keep: int, step: int) -> None:
    """Keep the newest state aside too under its step, unless it is of this one, and remove the oldest ones beyond `keep`."""
    from safetensors import SafetensorError, safe_open

    if keep > 1 and (out / FILE).is_file():
        with contextlib.suppress(SafetensorError), safe_open(out / FILE, "pt") as file:
            saved = int(file.metadata()["step"])
            if saved != step:
                _copy(out / FILE, out / f"state-{saved:09d}.safetensors")
    older = sorted(out.glob("state-*.safetensors"))
    for path in older[: max(0, len(older) - (keep - 1))]:
        path.unlink()


def _copy(source: Path, destination: Path) -> None:
    """By a hard link where the file system has them: the source is replaced next, never written to."""
    destination.unlink(missing_ok=True)
    try:
        os.link(source, destination)
    except OSError:
        shutil.copyfile(source, destination)


def load(out: Path, recipe: Recipe, drafter: Drafter, optimiser: torch.optim.Optimizer) -> int:
    """Restore the state in `out` if there is one; returns the step to go on with.

    Raises:
        UserError: the state belongs to a run with another recipe (differences listed), or its file is damaged.
    """
    from safetensors import SafetensorError, safe_open

    path = out / FILE
    if not path.is_file():
        return 0
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except SafetensorError as error:
        raise UserError(f"`{path}` is damaged: {error}", hint=f"remove `{path}` to begin again") from None
    saved, ours = json.loads(metadata["recipe"]), dataclasses.asdict(recipe)
    whole, _ = recipe_from_dict(saved)  # fields that are newer than the state get their defaults
    saved = saved if whole is None else dataclasses.asdict(whole)
    different = [k for k in ours if k not in FREE and saved.get(k) != ours[k]]
    if different:
        lines = "\n  ".join(f"{key}: {saved.get(key)!r} there, {ours[key]!r} here" for key in different)
        raise UserError(
            f"`{out}` holds an unfinished run of another recipe:\n  {lines}",
            hint="choose another `out` or remove it",
        )
    drafter.load_state_dict({n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")})
    for name, parameter in drafter.named_parameters():
        prefix = f"optimiser.{name}."
        moments = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        if moments:
            optimiser.state[parameter] = {
                k: t.to(parameter.device if k != "step" else "cpu") for k, t in moments.items()
            }
    return int(metadata["step"])
