"""Loading a target: weights that transformers would replace by random numbers are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from lilicorr.runtime.errors import UserError
from lilicorr.train.target import load_target


@pytest.mark.parametrize(
    ("change", "message"), [("drop", "missing: {}"), ("cut", r"shape: {} is \[63, 32\], expected \[64, 32\]")]
)
def test_weights_that_do_not_fit(own_pair: tuple[Path, Path], change: str, message: str) -> None:
    from safetensors.torch import load_file, save_file

    file, name = own_pair[0] / "model.safetensors", "model.layers.2.mlp.up_proj.weight"
    tensors = load_file(file)
    weight = tensors.pop(name)
    if change == "cut":
        tensors[name] = weight[:-1].clone()
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(UserError, match=message.format(name)):
        load_target(own_pair[0])
