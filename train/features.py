"""Target features of the training sequences, computed once (in bf16 under bf16 compute) and kept on disk in bf16.

One file per sequence, written on first use: a second epoch, another drafter or a resumed run reads it back.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lilicorr.runtime.bundle import file_sha256
from lilicorr.train.conversation import Conversation
from lilicorr.train.target import target_features
from lilicorr.train.tensor_file import write_tensors


def weights_sha256(folder: Path | str) -> str:
    """One hash of a target's safetensors files."""
    hashes = [file_sha256(path) for path in sorted(Path(folder).glob("*.safetensors"))]
    return hashlib.sha256(repr(hashes).encode()).hexdigest()


class FeatureCache:
    """Args:
    model: The loaded target.
    target_sha256: Hash of the target's weights; tells targets apart in `folder`.
    layer_ids: The captured layers.
    folder: Holds one subfolder per target, layer set and precision. None keeps nothing.
    bf16: Compute in bf16.
    """

    def __init__(self, model: Any, target_sha256: str, layer_ids: tuple[int, ...], folder: Path | None, *, bf16: bool):
        self.model, self.layer_ids, self.bf16 = model, layer_ids, bf16
        key = hashlib.sha256(f"{target_sha256} {layer_ids}{'' if bf16 else ' fp32'}".encode()).hexdigest()[:12]
        self.folder = None if folder is None else folder / key

    def get(self, item: Conversation) -> tuple[Tensor, Tensor]:
        """features (T, F*H) and final normed hidden rows (T, H) of the sequence, bf16; on the CPU when they are kept."""
        from safetensors.torch import load_file

        if self.folder is None:
            return self._compute(item)
        digest = hashlib.sha256(repr(item.ids).encode()).hexdigest()[:24]
        path = self.folder / f"{digest}.safetensors"
        if not path.exists():
            features, hidden = self._compute(item)
            write_tensors(path, {"features": features, "hidden": hidden}, "the target's features")
        tensors = load_file(path)
        return tensors["features"], tensors["hidden"]

    def _compute(self, item: Conversation) -> tuple[Tensor, Tensor]:
        device = self.model.device
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.bf16):
            features, hidden = target_features(self.model, torch.tensor([item.ids], device=device), self.layer_ids)
        return features[0].to(torch.bfloat16), hidden[0].to(torch.bfloat16)
