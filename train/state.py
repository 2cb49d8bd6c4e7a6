"""The state of an unfinished training run: weights, optimiser moments and step, in one safetensors file (no pickle)."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
from functools import partial
from pathlib import Path

import torch

from lilicorr.runtime.errors import UserError
from lilicorr.train.drafter import Drafter
from lilicorr.train.recipe import Recipe, recipe_from_dict
from lilicorr.train.tensor_file import write_tensors

FILE = "state.safetensors"
# Recipe fields that may differ on resume; a run folder may be moved.
FREE = {"out", "features", "keep_features", "save_every", "threads", "logit_rows", "keep_states", "tensorboard"}


def save(
    out: Path, recipe: Recipe, data: dict[str, str], drafter: Drafter, optimiser: torch.optim.Optimizer, step: int
) -> None:
    """Write the state; the previous one stays until the new one is whole. `data` names what is trained on."""
    tensors = {f"model.{name}": tensor for name, tensor in drafter.state_dict().items()}
    for name, parameter in drafter.named_parameters():
        for key, value in optimiser.state.get(parameter, {}).items():
            tensors[f"optimiser.{name}.{key}"] = torch.as_tensor(value)
    metadata = {"step": str(step), "recipe": json.dumps(dataclasses.asdict(recipe)), "data": json.dumps(data)}
    rotate = partial(_rotate, out, recipe.keep_states, step)
    write_tensors(out / FILE, tensors, "the state", metadata=metadata, before=rotate)


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


def load(out: Path, recipe: Recipe, data: dict[str, str], drafter: Drafter, optimiser: torch.optim.Optimizer) -> int:
    """Restore the state in `out` if there is one; returns the step to go on with.

    Raises:
        UserError: the state belongs to a run with another recipe or on other data (differences listed), or its file is damaged.
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
    _refuse_another_run(out, metadata, recipe, data)
    drafter.load_state_dict({n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")})
    for name, parameter in drafter.named_parameters():
        prefix = f"optimiser.{name}."
        moments = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        if moments:
            optimiser.state[parameter] = {
                k: t.to(parameter.device if k != "step" else "cpu") for k, t in moments.items()
            }
    return int(metadata["step"])


def _refuse_another_run(out: Path, metadata: dict[str, str], recipe: Recipe, data: dict[str, str]) -> None:
    """Raise UserError with every difference between the saved run and this one."""
    saved = json.loads(metadata["recipe"])
    whole, _ = recipe_from_dict(saved)  # fields that are newer than the state get their defaults
    saved = saved if whole is None else dataclasses.asdict(whole)
    changed = {
        k: (saved.get(k), v) for k, v in dataclasses.asdict(recipe).items() if k not in FREE and saved.get(k) != v
    }
    # States of older versions do not say what they were trained on.
    seen = json.loads(metadata.get("data", json.dumps(data)))
    other = {k: (seen.get(k), v) for k, v in data.items() if seen.get(k) != v}
    for what, differences in (("of another recipe", changed), ("on other data", other)):
        if differences:
            lines = "\n  ".join(f"{key}: {there!r} there, {here!r} here" for key, (there, here) in differences.items())
            raise UserError(
                f"`{out}` holds an unfinished run {what}:\n  {lines}", hint="choose another `out` or remove it"
            )
