"""Load a target for the export: its integers, and the PyTorch model that computes with exactly what they stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lilicorr.export.block_weights import BlockWeight, round_to_nearest
from lilicorr.export.quantised_config import PACKED, Stored
from lilicorr.export.quantised_layout import block_weight
from lilicorr.export.source import TargetFolder
from lilicorr.runtime.errors import UserError
from lilicorr.runtime.manifest import Quantisation
from lilicorr.train.folder import model_files
from lilicorr.train.target import load_target


def load_with_integers(
    folder: TargetFolder, quantisation: Quantisation | None, dtype: torch.dtype
) -> tuple[Any, list[BlockWeight]]:
    """The target as a transformers causal LM in fp32, and the integers behind the weights of its decoder layers' linear layers.

    Args:
        quantisation: What `quantised_config.chosen_quantisation` says of `folder`.
        dtype: Of the scales; what the bundle's graph will be.

    Raises:
        UserError: weights missing, of the wrong shape, or integers that do not fit the folder's config.json.
    """
    if folder.stored is not None:
        return _load_stored(folder.path, folder.stored, dtype)
    model = load_target(folder.path)
    if quantisation is None:
        return model, []
    weights = []
    for layer in model.base_model.modules():
        if isinstance(layer, nn.Linear):
            weights.append(round_to_nearest(layer.weight, quantisation.bits, quantisation.block, dtype))
            layer.weight.copy_(weights[-1].dequantised(torch.float32))
    return model, weights


def _load_stored(folder: Path, stored: Stored, dtype: torch.dtype) -> tuple[Any, list[BlockWeight]]:
    """transformers itself would need the library of each format, and would give no integers."""
    from transformers import AutoConfig, AutoModelForCausalLM

    tensors = _tensors(folder)
    suffix = "." + PACKED[stored.source]
    weights = {}
    for layer in [name.removesuffix(suffix) for name in tensors if name.endswith(suffix)]:
        parts = {name.removeprefix(layer + "."): tensors.pop(name) for name in list(tensors) if _belongs(name, layer)}
        weights[layer] = block_weight(layer, parts, stored, dtype)
        tensors[layer + ".weight"] = weights[layer].dequantised(torch.float32)
        tensors |= {f"{layer}.bias": parts["bias"]} if "bias" in parts else {}
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    model.tie_weights()
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    if problems := [*sorted(set(missing) - tied), *sorted(unexpected)]:
        raise UserError(
            f"the weights in `{folder}` do not fit its config.json: {', '.join(problems)}",
            hint="download the whole folder again",
        )
    return model.eval().requires_grad_(False), list(weights.values())


def _belongs(name: str, layer: str) -> bool:
    return name.rpartition(".")[0] == layer


def _tensors(folder: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return {name: tensor for file in model_files(folder) for name, tensor in load_file(folder / file).items()}
