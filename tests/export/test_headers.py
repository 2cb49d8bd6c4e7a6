"""Safetensors headers: read without the safetensors library, and damaged files refused by name."""

import json

import pytest
import torch
from safetensors.torch import save_file

from lilicorr.export.headers import read_headers
from lilicorr.runtime.errors import UserError
from lilicorr.train.folder import INDEX


@pytest.fixture
def folder(tmp_path):
    save_file({"a": torch.zeros(2, 3), "b": torch.zeros(4, dtype=torch.bfloat16)}, tmp_path / "model.safetensors")
    return tmp_path


def test_names_dtypes_and_shapes(folder):
    found = {name: (header.dtype, header.shape, header.numel) for name, header in read_headers(folder).items()}
    assert found == {"a": ("F32", (2, 3), 6), "b": ("BF16", (4,), 4)}


def test_only_the_shards_of_the_index_are_read(folder):
    save_file({"c": torch.zeros(1)}, folder / "one.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"c": "one.safetensors"}}))
    assert list(read_headers(folder)) == ["c"]


def test_every_bad_shard_is_listed(folder):
    (folder / INDEX).write_text(json.dumps({"weight_map": {"x": "gone.safetensors", "y": "short.safetensors"}}))
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "short.safetensors").write_bytes(whole[:-1])
    with pytest.raises(UserError) as caught:
        read_headers(folder)
    assert "gone.safetensors" in caught.value.what
    assert f"found {len(whole) - 1:,} bytes, its header promises {len(whole):,}" in caught.value.what


@pytest.mark.parametrize("size", [0, 4, 8, 20])
def test_a_file_cut_inside_its_header_is_refused(folder, size):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(UserError, match="header cannot be read"):
        read_headers(folder)


def test_a_folder_without_safetensors_is_refused(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(UserError, match="holds no safetensors file"):
        read_headers(tmp_path)
