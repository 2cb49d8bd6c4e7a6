"""Checkpoints: published names and shapes, both layouts, bit-exact round trips, and every way a folder can be wrong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from lilicorr.runtime.errors import UserError
from lilicorr.train.checkpoint import read_drafter, write_drafter
from tests.fixtures import drafter_config, edit_json, write_drafter_folder
from tests.train import independent

# Spec of the published export: H 32, 2 captured layers, 4 query and 2 K/V heads of 8, FFN 48, h 16, f 8, 2 heads, K 4, B 5.
DFLASH_TENSORS = {
    "fc.weight": (32, 64),
    "hidden_norm.weight": (32,),
    "norm.weight": (32,),
    **{
        f"layers.{i}.{name}": shape
        for i in (0, 1)
        for name, shape in {
            "input_layernorm.weight": (32,),
            "post_attention_layernorm.weight": (32,),
            "self_attn.q_proj.weight": (32, 32),
            "self_attn.k_proj.weight": (16, 32),
            "self_attn.v_proj.weight": (16, 32),
            "self_attn.o_proj.weight": (32, 32),
            "self_attn.q_norm.weight": (8,),
            "self_attn.k_norm.weight": (8,),
            "mlp.gate_proj.weight": (48, 32),
            "mlp.up_proj.weight": (48, 32),
            "mlp.down_proj.weight": (32, 48),
        }.items()
    },
}
HEAD_TENSORS = {
    "lilicorr.token_proj.weight": (16, 32),
    "lilicorr.token_proj.bias": (16,),
    "lilicorr.pass_hidden_proj.weight": (16, 32),
    "lilicorr.pass_hidden_proj.bias": (16,),
    "lilicorr.context_proj.weight": (16, 32),
    "lilicorr.context_proj.bias": (16,),
    "lilicorr.feature_mlp.0.weight": (5,),
    "lilicorr.feature_mlp.0.bias": (5,),
    "lilicorr.feature_mlp.1.weight": (16, 5),
    "lilicorr.feature_mlp.1.bias": (16,),
    "lilicorr.feature_mlp.3.weight": (16, 16),
    "lilicorr.feature_mlp.3.bias": (16,),
    "lilicorr.slot_embedding": (1, 1, 4, 1, 16),
    "lilicorr.rank_embedding": (1, 1, 1, 4, 16),
    "lilicorr.relative_slot_bias": (2, 9),
    "lilicorr.same_slot_bias": (2,),
    "lilicorr.layers.0.attn_norm.weight": (16,),
    "lilicorr.layers.0.attn.in_proj_weight": (48, 16),
    "lilicorr.layers.0.attn.in_proj_bias": (48,),
    "lilicorr.layers.0.attn.out_proj.weight": (16, 16),
    "lilicorr.layers.0.attn.out_proj.bias": (16,),
    "lilicorr.layers.0.mlp_norm.weight": (16,),
    "lilicorr.layers.0.mlp.0.weight": (32, 16),
    "lilicorr.layers.0.mlp.0.bias": (32,),
    "lilicorr.layers.0.mlp.2.weight": (16, 32),
    "lilicorr.layers.0.mlp.2.bias": (16,),
    "lilicorr.output_norm.weight": (16,),
    "lilicorr.anchor_norm.weight": (16,),
    "lilicorr.factor_input_proj.weight": (16, 48),
    "lilicorr.factor_input_proj.bias": (16,),
    "lilicorr.out_head.weight": (8, 16),
    "lilicorr.out_head.bias": (8,),
    "lilicorr.in_head.weight": (8, 16),
    "lilicorr.in_head.bias": (8,),
    "lilicorr.anchor_out_head.weight": (8, 16),
    "lilicorr.anchor_out_head.bias": (8,),
}
NAMED = {  # the layout of other loaders, by replacement
    "feature_mlp.0.": "feature_norm.",
    "feature_mlp.1.": "feature_mlp.up_proj.",
    "feature_mlp.3.": "feature_mlp.down_proj.",
    "mlp.0.": "mlp.up_proj.",
    "mlp.2.": "mlp.down_proj.",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A drafter folder of this test's own."""
    write_drafter_folder(tmp_path / "drafter", lilicorr_hidden_size=16)
    return tmp_path / "drafter"


def rewrite(folder: Path, change) -> dict[str, torch.Tensor]:
    """Replace the folder's tensors by change(tensors)."""
    path = folder / "model.safetensors"
    tensors = change(load_file(path))
    save_file(tensors, path)
    return tensors


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        read_drafter(folder)
    return caught.value.what


def assert_same_tensors(drafter, tensors: dict[str, torch.Tensor]) -> None:
    state = drafter.state_dict()
    assert state.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert state[name].dtype == tensor.dtype, name
        assert torch.equal(state[name], tensor), name


def test_writes_the_published_names_and_shapes(folder, tmp_path):
    write_drafter(read_drafter(folder), tmp_path / "out")
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        assert file.metadata() == {"format": "pt"}
    assert shapes == DFLASH_TENSORS | HEAD_TENSORS
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config == drafter_config(lilicorr_hidden_size=16)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors"]


def test_plain_dflash_writes_no_head(tmp_path):
    write_drafter_folder(tmp_path / "in", architectures=["DFlashDraftModel"])
    drafter = read_drafter(tmp_path / "in")
    assert drafter.head is None
    write_drafter(drafter, tmp_path / "out")
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert {name: tuple(t.shape) for name, t in written.items()} == DFLASH_TENSORS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_round_trip_is_bit_exact(folder, tmp_path, dtype):
    tensors = rewrite(folder, lambda t: {name: tensor.to(dtype) for name, tensor in t.items()})
    first = read_drafter(folder)
    assert_same_tensors(first, tensors)
    write_drafter(first, tmp_path / "out")
    assert_same_tensors(read_drafter(tmp_path / "out"), tensors)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["torch_dtype"] == str(dtype).split(".")[1]


def test_mixed_dtypes_and_unusual_values_survive(folder, tmp_path):
    def change(tensors):
        tensors = {n: t if "norm" in n else t.bfloat16() for n, t in tensors.items()}
        tensors["norm.weight"][:3] = torch.tensor([-0.0, 1e-42, float("inf")])
        return tensors

    tensors = rewrite(folder, change)
    write_drafter(read_drafter(folder), tmp_path / "out")
    again = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(again[n].view(torch.uint8), t.view(torch.uint8)) for n, t in tensors.items())


def test_named_layout_leading_model_and_4d_embeddings(folder):
    original = load_file(folder / "model.safetensors")

    def change(tensors):
        renamed = {}
        for name, tensor in tensors.items():
            if name.startswith("lilicorr."):
                for old, new in NAMED.items():
                    name = name.replace(old, new)
            renamed["model." + name] = tensor
        for name in ("slot_embedding", "rank_embedding"):
            renamed[f"model.lilicorr.{name}"] = renamed[f"model.lilicorr.{name}"].squeeze(0)
        return renamed

    stored = rewrite(folder, change)
    assert "model.lilicorr.layers.0.mlp.up_proj.weight" in stored
    assert "model.lilicorr.feature_norm.bias" in stored
    assert_same_tensors(read_drafter(folder), original)


def test_sharded_and_written_back_over_itself(folder):
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    shards = {"a-00001.safetensors": names[::2], "a-00002.safetensors": names[1::2]}
    for file, part in shards.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    (folder / "model.safetensors").unlink()
    weight_map = {name: file for file, part in shards.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    drafter = read_drafter(folder)
    assert_same_tensors(drafter, tensors)
    drafter.norm.weight.data += 1
    write_drafter(drafter, folder)
    assert torch.equal(read_drafter(folder).norm.weight, tensors["norm.weight"] + 1)
    write_drafter(drafter, folder)


def test_missing_shard_is_named(folder):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"norm.weight": "b.safetensors"}}))
    assert "b.safetensors` does not exist" in refusal(folder)


@pytest.mark.parametrize("weight_map", [{"norm.weight": "../model.safetensors"}, {"norm.weight": 3}, ["x"], None])
def test_index_must_name_files_of_the_folder(folder, weight_map):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert "must name files of this folder" in refusal(folder)


def test_own_lm_head_and_reduced_vocabulary(folder, tmp_path):
    edit_json(folder / "config.json", {"has_own_lm_head": True, "draft_vocab_size": 7})
    kept = torch.tensor([0, 2, 5, 6, 100, 101, 299])
    extra = {"lm_head.weight": torch.randn(7, 32), "d2t": kept - torch.arange(7)}
    tensors = rewrite(folder, lambda t: t | extra)
    drafter = read_drafter(folder)
    assert_same_tensors(drafter, tensors)
    assert drafter.target_ids(torch.arange(7)).tolist() == kept.tolist()
    write_drafter(drafter, tmp_path / "out")
    assert_same_tensors(read_drafter(tmp_path / "out"), tensors)


def test_reduced_vocabulary_takes_the_targets_rows(folder):
    edit_json(folder / "config.json", {"draft_vocab_size": 3})
    rewrite(folder, lambda t: t | {"d2t": torch.tensor([4, 8, 200])})
    table = torch.arange(300.0)[:, None].expand(300, 32)
    assert read_drafter(folder).output_rows(table)[:, 0].tolist() == [4.0, 9.0, 202.0]


def test_d2t_outside_the_vocabulary_is_refused(folder):
    edit_json(folder / "config.json", {"draft_vocab_size": 3})
    rewrite(folder, lambda t: t | {"d2t": torch.tensor([-1, 0, 298])})
    assert "d2t: target ids -1 to 300, expected 0 to 299" in refusal(folder)


def test_convolutions_are_read_written_and_used(folder, tmp_path):
    config = json.loads((folder / "config.json").read_text())
    config["dflash_config"] |= {"conv_kernel_size": 2, "conv_group_size": 16}
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {
        f"layers.{i}.{kind}_conv.{name}": shape
        for i in (0, 1)
        for kind in ("attention", "mlp")
        for name, shape in {"base_kernel": (2, 2, 32), "kernel_projection.weight": (8, 32)}.items()
    }
    tensors = rewrite(folder, lambda t: t | {name: 0.3 * torch.randn(shape) for name, shape in shapes.items()})
    drafter = read_drafter(folder)
    assert_same_tensors(drafter, tensors)
    write_drafter(drafter, tmp_path / "out")
    assert_same_tensors(read_drafter(tmp_path / "out"), tensors)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dflash_config"] == config["dflash_config"]


def test_what_is_read_computes_what_the_files_say(folder):
    """From the file to the numbers without our names in between: the stored tensors go to the independent implementation."""
    tensors = {name: tensor.double().numpy() for name, tensor in load_file(folder / "model.safetensors").items()}
    shape = independent.DrafterShape(layers=2, heads=4, kv_heads=2, head_dim=8, rms_eps=1e-6, rope_theta=1e4)
    generator = torch.Generator().manual_seed(0)
    block, features = (torch.randn(size, generator=generator) for size in ((5, 32), (6, 64)))
    with torch.no_grad():
        ours = read_drafter(folder).block_hidden(block[None], features[None])[0]
    theirs = independent.block_hidden(tensors, shape, block.double().numpy(), features.double().numpy())
    np.testing.assert_allclose(ours.numpy(), theirs, atol=2e-5)


def test_missing_unexpected_and_misshaped_tensors_at_once(folder):
    def change(tensors):
        del tensors["norm.weight"], tensors["lilicorr.in_head.bias"]
        tensors["surprise"] = torch.zeros(3)
        tensors["fc.weight"] = torch.zeros(32, 63)
        tensors["lilicorr.slot_embedding"] = torch.zeros(())
        tensors["lilicorr.rank_embedding"] = torch.zeros(1, 1, 3, 16)
        tensors["layers.0.input_layernorm.weight"] = torch.ones(32, dtype=torch.int8)
        tensors["model.layers.1.input_layernorm.weight"] = torch.ones(32)
        return tensors

    rewrite(folder, change)
    lines = refusal(folder).splitlines()[1:]
    assert sorted(line.strip() for line in lines) == [
        "dtype: layers.0.input_layernorm.weight is torch.int8, expected torch.float32",
        "missing: lilicorr.in_head.bias [8]",
        "missing: norm.weight [32]",
        "shape: fc.weight is [32, 63], expected [32, 64]",
        "shape: lilicorr.rank_embedding is [1, 1, 1, 3, 16], expected [1, 1, 1, 4, 16]",
        "shape: lilicorr.slot_embedding is [], expected [1, 1, 4, 1, 16]",
        "twice: layers.1.input_layernorm.weight, once as model.layers.1.input_layernorm.weight",
        "unexpected: surprise [3]",
    ]


def test_token_proj_is_absent_exactly_when_widths_are_equal(tmp_path):
    write_drafter_folder(tmp_path / "a", lilicorr_hidden_size=32)
    text = refusal(tmp_path / "a")
    assert "unexpected: lilicorr.token_proj.weight [32, 32]" in text
    drop = ("lilicorr.token_proj.weight", "lilicorr.token_proj.bias")
    rewrite(tmp_path / "a", lambda tensors: {n: t for n, t in tensors.items() if n not in drop})
    assert isinstance(read_drafter(tmp_path / "a").head.token_proj, torch.nn.Identity)


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_truncated_weights(folder, keep):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    text = refusal(folder)
    assert "is truncated or damaged" in text
    assert str(path) in text


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"{", "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (b"[]", "expected a JSON object, found list"),
        (None, "does not exist"),
    ],
)
def test_unreadable_config(folder, content, text):
    path = folder / "config.json"
    path.unlink() if content is None else path.write_bytes(content)
    assert text in refusal(folder)


def test_no_weights_and_pickled_weights(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError) as caught:
        read_drafter(folder)
    assert "holds no safetensors file: neither `model.safetensors`" in caught.value.what
    assert "only safetensors" in caught.value.hint


def test_unknown_architecture(folder):
    edit_json(folder / "config.json", {"architectures": ["EagleModel"]})
    assert "EagleModel" in refusal(folder)


def test_unwritable_folder_keeps_what_is_there(folder, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="cannot be written"):
        write_drafter(read_drafter(folder), tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
