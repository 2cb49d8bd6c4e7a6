"""Pre-quantised tiny targets, packed value by value in plain Python integers: independent of the reader that they test."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

BLOCK = 32
AWQ_NIBBLES = {0: 0, 1: 4, 2: 1, 3: 5, 4: 2, 5: 6, 6: 3, 7: 7}  # column of eight -> nibble of the word
CONFIGS: dict[str, dict[str, Any]] = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": BLOCK, "sym": True, "desc_act": False},
    "gptq_v2": {
        "quant_method": "gptq",
        "bits": 8,
        "group_size": BLOCK,
        "sym": True,
        "desc_act": False,
        "checkpoint_format": "gptq_v2",
    },
    "gptq-asymmetric": {"quant_method": "gptq", "bits": 4, "group_size": BLOCK, "sym": False, "desc_act": False},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": BLOCK, "zero_point": True, "version": "gemm"},
    "compressed-tensors": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {
                    "num_bits": 4,
                    "type": "int",
                    "symmetric": True,
                    "strategy": "group",
                    "group_size": BLOCK,
                    "actorder": None,
                },
                "input_activations": None,
            }
        },
        "ignore": ["lm_head"],
    },
}
CONFIGS["compressed-tensors-asymmetric"] = json.loads(
    json.dumps(CONFIGS["compressed-tensors"]).replace("true", "false")
)


def words(values: np.ndarray, bits: int, place: dict[int, int] | None = None) -> torch.Tensor:
    """(R, n · 32/bits) unsigned values -> (R, n) int32 words; value j of a word sits at bit bits · place[j], or bits · j."""
    per_word = 32 // bits
    packed = np.zeros((values.shape[0], values.shape[1] // per_word), dtype=object)
    for row in range(values.shape[0]):
        for column in range(values.shape[1]):
            j = column % per_word
            packed[row, column // per_word] += int(values[row, column]) << bits * (j if place is None else place[j])
    return torch.from_numpy(packed.astype(np.uint64).astype(np.uint32).view(np.int32))


def pack_layer(kind: str, values: np.ndarray, zeros: np.ndarray, scales: np.ndarray) -> dict[str, torch.Tensor]:
    """Tensors of one layer from unsigned values (O, I), zero points (O, I/block) and scales (O, I/block)."""
    config = CONFIGS[kind]
    half = torch.from_numpy(scales.astype(np.float16))
    if kind.startswith("gptq"):
        bits, stored = config["bits"], zeros - (0 if kind == "gptq_v2" else 1)
        return {
            "qweight": words(values, bits).T.contiguous(),
            "qzeros": words(stored.T, bits),
            "scales": half.T.contiguous(),
            "g_idx": torch.arange(values.shape[1], dtype=torch.int32) // BLOCK,
        }
    if kind == "awq":
        return {
            "qweight": words(values.T, 4, AWQ_NIBBLES),
            "qzeros": words(zeros.T, 4, AWQ_NIBBLES),
            "scales": half.T.contiguous(),
        }
    packed = {
        "weight_packed": words(values, 4),
        "weight_scale": half,
        "weight_shape": torch.tensor(values.shape),
    }
    return packed | ({"weight_zero_point": words(zeros.T, 4).T.contiguous()} if "asymmetric" in kind else {})


def random_integers(kind: str, shape: tuple[int, int], seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """values, zero points and scales as `pack_layer` takes them."""
    rng = np.random.default_rng(seed)
    bits, blocks = CONFIGS[kind].get("bits", 4), (shape[0], shape[1] // BLOCK)
    symmetric = kind in ("gptq", "gptq_v2", "compressed-tensors")
    zeros = np.full(blocks, 2 ** (bits - 1)) if symmetric else rng.integers(1, 15, blocks)
    return rng.integers(0, 2**bits, shape), zeros, rng.uniform(0.2, 1, blocks) * 0.6 / 2 ** (bits - 1)


def write_packed_target(folder: Path, source: Path, kind: str) -> dict[str, np.ndarray]:
    """Write `source` with random integers in its decoder layers; return layer -> the weight (O, I) they stand for, fp32."""
    shutil.copytree(source, folder)
    tensors, meant = load_file(source / "model.safetensors"), {}
    for seed, name in enumerate(sorted(n for n in tensors if ".layers." in n and tensors[n].ndim == 2)):
        layer = name.removesuffix(".weight")
        values, zeros, scales = random_integers(kind, tuple(tensors.pop(name).shape), seed)
        tensors |= {f"{layer}.{part}": t for part, t in pack_layer(kind, values, zeros, scales).items()}
        wide = [np.repeat(array, BLOCK, axis=1) for array in (zeros, scales.astype(np.float16).astype(np.float32))]
        meant[layer] = ((values - wide[0]).astype(np.float32) * wide[1]).astype(np.float32)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": CONFIGS[kind]}))
    return meant
