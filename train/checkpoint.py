"""Read and write drafters as Hugging Face style folders (config.json + safetensors), in the published layouts (`tensor_names`).

No pickle.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from lilicorr.runtime.errors import UserError
from lilicorr.train.config import DSparkConfig
from lilicorr.train.config_json import config_from_dict, config_to_dict
from lilicorr.train.drafter import Drafter
from lilicorr.train.folder import CONFIG, INDEX, WEIGHTS, model_files, read_json
from lilicorr.train.rope import Rotary
from lilicorr.train.tensor_names import five_dimensional, our_name, published_name


def read_drafter(folder: Path | str) -> Drafter:
    """Read the checkpoint of a drafter with any head; weights keep the dtype they are stored in.

    Raises:
        UserError: no such folder, unreadable or truncated file, an unusable configuration, or tensors that are missing,
            unexpected or of the wrong shape (all listed at once).
    """
    folder = Path(folder)
    config = config_from_dict(read_json(folder / CONFIG), str(folder / CONFIG))
    with torch.device("meta"):
        drafter = Drafter(config)
    tensors: dict[str, Tensor] = {}
    problems = []
    # DeepSpec's checkpoints carry frozen copies of the target's tables.
    borrowed = ("embed_tokens.weight", "lm_head.weight") if isinstance(config.head, DSparkConfig) else ()
    borrowed = () if config.has_own_lm_head else borrowed
    for stored, tensor in _read_tensors(folder).items():
        name = our_name(stored)
        if name in borrowed:
            continue
        if name in tensors:
            problems.append(f"twice: {name}, once as {stored}")
        tensors[name] = five_dimensional(name, tensor)
    problems += _mismatches(tensors, drafter.state_dict())
    if "d2t" in tensors and not problems:
        ids = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
        if not 0 <= int(ids.min()) <= int(ids.max()) < config.vocab_size:
            problems.append(
                f"d2t: target ids {int(ids.min())} to {int(ids.max())}, expected 0 to {config.vocab_size - 1}"
            )
    if problems:
        raise UserError(
            f"`{folder}` does not fit its configuration:\n  " + "\n  ".join(problems),
            hint="copy config.json and the weights from the same checkpoint",
        )
    drafter.load_state_dict(tensors, assign=True)
    # Not part of the state, so still on the meta device.
    drafter.rotary = Rotary(config.rope, config.head_dim, config.max_position_embeddings)
    return drafter.eval()


def _mismatches(tensors: dict[str, Tensor], expected: dict[str, Tensor]) -> list[str]:
    """Tensors that are missing, unexpected, or of another shape or kind of number."""
    problems = [f"missing: {name} {list(t.shape)}" for name, t in expected.items() if name not in tensors]
    for name, tensor in tensors.items():
        if name not in expected:
            problems.append(f"unexpected: {name} {list(tensor.shape)}")
        elif tensor.shape != expected[name].shape:
            problems.append(f"shape: {name} is {list(tensor.shape)}, expected {list(expected[name].shape)}")
        elif tensor.is_floating_point() != expected[name].is_floating_point():
            problems.append(f"dtype: {name} is {tensor.dtype}, expected {expected[name].dtype}")
    return problems


def write_drafter(drafter: Drafter, folder: Path | str) -> None:
    """Write the published layout; each file appears whole or not at all.

    Raises:
        UserError: the folder cannot be written (a file in its place, no rights, no space).
    """
    folder = Path(folder)
    tensors = {published_name(n): tensor.detach().cpu().contiguous() for n, tensor in drafter.state_dict().items()}
    data = config_to_dict(drafter.config) | {"torch_dtype": str(drafter.fc.weight.dtype).removeprefix("torch.")}
    try:
        _write_files(folder, tensors, data)
    except (OSError, SafetensorError) as error:
        raise UserError(f"the drafter cannot be written to `{folder}`: {error}", hint="choose another folder") from None


def _write_files(folder: Path, tensors: dict[str, Tensor], data: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".write-") as work:
        save_file(tensors, Path(work) / WEIGHTS, metadata={"format": "pt"})
        (Path(work) / CONFIG).write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
        for name in (WEIGHTS, CONFIG):
            os.replace(Path(work) / name, folder / name)
    # The index of a sharded checkpoint written here before would win on reading.
    (folder / INDEX).unlink(missing_ok=True)


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for shard in model_files(folder):
        path = folder / shard
        if not path.is_file():
            raise UserError(
                f"`{path}` does not exist", hint="copy the whole checkpoint folder; only safetensors is read"
            )
        try:
            tensors |= load_file(path)
        except SafetensorError as error:
            raise UserError(f"`{path}` is truncated or damaged: {error}", hint="copy the file again") from None
    return tensors
