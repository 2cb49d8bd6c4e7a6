"""Targets as integers: pre-quantised folders are read integer by integer, and a model computes with exactly what they mean."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from lilicorr.export.quantised_target import load_with_integers
from lilicorr.export.source import read_target
from lilicorr.runtime.errors import UserError
from tests.export.packed import CONFIGS, write_packed_target
from tests.fixtures import edit_json


def load(folder, dtype=torch.float32):
    target = read_target(folder)
    return load_with_integers(target, target.stored.quantisation, dtype)


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_format_gives_the_weights_that_were_packed(tiny_target, tmp_path, kind):
    meant = write_packed_target(tmp_path / "t", tiny_target, kind)
    model, integers = load(tmp_path / "t")
    assert len(integers) == len(meant)
    layers = dict(model.named_modules())
    for name, weight in meant.items():
        assert np.array_equal(layers[name].weight.numpy(), weight), name
    bits = 8 if kind == "awq" or kind == "gptq_v2" or "asymmetric" in kind else 4
    assert {weight.bits for weight in integers} == {bits} == {read_target(tmp_path / "t").stored.quantisation.bits}
    untouched = load_file(tiny_target / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(model.get_input_embeddings().weight, untouched)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert torch.isfinite(model(torch.tensor([[5, 6, 7]])).logits).all()


def test_scales_take_the_dtype_of_the_graph(tiny_target, tmp_path):
    write_packed_target(tmp_path / "t", tiny_target, "gptq")
    model, integers = load(tmp_path / "t", torch.bfloat16)
    assert {weight.scales.dtype for weight in integers} == {torch.bfloat16}
    gate = next(layer for name, layer in model.named_modules() if name.endswith("layers.0.mlp.gate_proj"))
    rows = {row.numpy().tobytes() for weight in integers for row in weight.dequantised(torch.float32)}
    assert {row.numpy().tobytes() for row in gate.weight} <= rows


def damaged(folder, change):
    """Rewrite the weights of `folder` by `change`."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(
        {name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors", metadata={"format": "pt"}
    )


LAYER = "model.layers.0.mlp.down_proj"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(f"{LAYER}.scales"), r"`model\.layers\.0\.mlp\.down_proj` has no tensor 'scales'"),
        (
            lambda t: t.update({f"{LAYER}.scales": t[f"{LAYER}.scales"][:1]}),
            r"with \(32, 1\) scales, expected \(32, 2\)",
        ),
        (lambda t: t.update({f"{LAYER}.g_idx": t[f"{LAYER}.g_idx"].flip(0)}), r"not runs of neighbours \(g_idx\)"),
        (
            lambda t: t.update({f"{LAYER}.qzeros": t[f"{LAYER}.qzeros"] * 0}),
            "has zero points, which its config.json denies",
        ),
        (lambda t: t.pop("model.norm.weight"), r"do not fit its config\.json: model\.norm\.weight"),
    ],
)
def test_damaged_weights(tiny_target, tmp_path, change, message):
    write_packed_target(tmp_path / "t", tiny_target, "gptq")
    damaged(tmp_path / "t", change)
    with pytest.raises(UserError, match=message):
        load(tmp_path / "t")


def changed(kind, **changes):
    return CONFIGS[kind] | changes


def in_group(**changes):
    config = json.loads(json.dumps(CONFIGS["compressed-tensors"]))
    group = config["config_groups"]["group_0"]
    for key, value in changes.items():
        (group if key in group else group["weights"])[key] = value
    return config


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True},
            "by 'bitsandbytes'; the formats .* gptq, awq, compressed-tensors",
        ),
        ({"quant_method": "fp8"}, "by 'fp8'"),
        ("int4", "by 'int4'"),
        (changed("gptq", desc_act=True), "desc_act"),
        (changed("gptq", group_size=-1), "group size -1, expected 32, 64, 128"),
        (changed("gptq", bits=3), "3 bits, expected 4"),
        (changed("gptq", bits=8, sym=False), "8 bits with zero points"),
        (changed("gptq", checkpoint_format="marlin"), "'marlin', expected gptq or gptq_v2"),
        (changed("awq", version="gemv"), "'gemv', expected gemm"),
        (changed("awq", bits=8, zero_point=False), "8 bits"),
        (changed("compressed-tensors", format="float-quantized"), "'float-quantized'"),
        (changed("compressed-tensors", config_groups={}), "with 0 config groups"),
        (in_group(strategy="channel"), "a scale per group"),
        (in_group(type="float"), "integer weights"),
        (in_group(input_activations={"num_bits": 8}), "float activations"),
        (in_group(actorder="group"), "actorder"),
    ],
)
def test_formats_that_cannot_be_read(tiny_target, tmp_path, own_pair, config, message):
    target, _ = own_pair
    edit_json(target / "config.json", {"quantization_config": config})
    with pytest.raises(UserError, match=message) as caught:
        read_target(target)
    assert "--weights int4" in caught.value.hint
