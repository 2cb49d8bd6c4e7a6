"""Tiny models that look exactly like real ones on disk: a 4-layer Llama folder and a DFlash + LiLiCorr drafter folder.

The drafter files are written from the published layout's names and shapes, not with lilicorr's own writer, so that what is
read from them is tested against an independent source. Import the pytest fixtures through `tests/conftest.py`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from lilicorr.runtime.manifest import FILE_NAME, seal

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|reserved|>")  # ids 0 to 3; the mask is <|reserved|>
MASK_ID = 3
VOCAB = 300
HIDDEN = 32
LAYERS = 4
TEXT = "the quick brown fox jumps over the lazy dog while the user asks and the assistant answers "
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def write_tokenizer(folder: Path) -> None:
    """Write a byte-level BPE of exactly VOCAB entries, its config and a ChatML template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[AddedToken(token, special=True) for token in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=1,
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    assert tokenizer.get_vocab_size() == VOCAB
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": SPECIAL[1], "eos_token": SPECIAL[2], "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def write_target(folder: Path, *, tie: bool = True, seed: int = 0) -> None:
    """Write a random Llama of LAYERS layers as transformers saves it, with its tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=64,
        vocab_size=VOCAB,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=tie,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        initializer_range=0.3,  # logits far enough apart that rounding decides no token
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    write_tokenizer(folder)


def drafter_config(**changes: Any) -> dict[str, Any]:
    """Return the published config.json of a drafter for the tiny target; `changes` go to dflash_config when known there."""
    dflash = {
        "mask_token_id": MASK_ID,
        "target_layer_ids": [1, 2],
        "causal": False,
        "projector_type": "lilicorr",
        "lilicorr_enabled": True,
        "lilicorr_candidate_topk": 4,
        "lilicorr_hidden_size": 24,
        "lilicorr_num_layers": 1,
        "lilicorr_num_heads": 2,
        "lilicorr_mlp_ratio": 2.0,
        "lilicorr_factor_dim": 8,
        "lilicorr_vector_eps": 1e-4,
        "lilicorr_logit_scale": 8.0,
    }
    config: dict[str, Any] = {
        "architectures": ["LiLiCorrDraftModel"],
        "model_type": "qwen3",
        "block_size": 5,
        "hidden_size": HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "vocab_size": VOCAB,
        "max_position_embeddings": 512,
        "initializer_range": 0.02,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "num_target_layers": LAYERS,
        "layer_types": ["full_attention", "full_attention"],
        "torch_dtype": "float32",
    }
    for key, value in changes.items():
        (dflash if key in dflash else config)[key] = value
    if config["architectures"] == ["DFlashDraftModel"]:
        dflash = {key: dflash[key] for key in ("mask_token_id", "target_layer_ids", "causal")}
    return {**config, "dflash_config": dflash}


def drafter_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of the published sequential layout for `config`."""
    dflash, width, head = config["dflash_config"], config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (width, len(dflash["target_layer_ids"]) * width),
        "hidden_norm.weight": (width,),
        "norm.weight": (width,),
    }
    for i in range(config["num_hidden_layers"]):
        layer = f"layers.{i}."
        shapes |= {layer + "input_layernorm.weight": (width,), layer + "post_attention_layernorm.weight": (width,)}
        for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
            shapes[f"{layer}self_attn.{name}.weight"] = (rows, width)
        shapes[layer + "self_attn.o_proj.weight"] = (width, queries)
        shapes |= {layer + "self_attn.q_norm.weight": (head,), layer + "self_attn.k_norm.weight": (head,)}
        shapes |= {f"{layer}mlp.{name}_proj.weight": (config["intermediate_size"], width) for name in ("gate", "up")}
        shapes[layer + "mlp.down_proj.weight"] = (width, config["intermediate_size"])
    if config["architectures"] == ["LiLiCorrDraftModel"]:
        shapes |= {"lilicorr." + name: shape for name, shape in _head_shapes(config).items()}
    return shapes


def _head_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    dflash, width, block = config["dflash_config"], config["hidden_size"], config["block_size"]
    h, f = dflash["lilicorr_hidden_size"], dflash["lilicorr_factor_dim"]
    heads, topk = dflash["lilicorr_num_heads"], dflash["lilicorr_candidate_topk"]
    shapes: dict[str, tuple[int, ...]] = {
        "slot_embedding": (1, 1, block - 1, 1, h),
        "rank_embedding": (1, 1, 1, topk, h),
        "relative_slot_bias": (heads, 2 * block - 1),
        "same_slot_bias": (heads,),
        "output_norm.weight": (h,),
        "anchor_norm.weight": (h,),
    }
    linears = {
        "token_proj": (h, width),
        "pass_hidden_proj": (h, width),
        "context_proj": (h, width),
        "feature_mlp.1": (h, 5),
        "feature_mlp.3": (h, h),
        "factor_input_proj": (h, 3 * h),
        "out_head": (f, h),
        "in_head": (f, h),
        "anchor_out_head": (f, h),
    }
    for i in range(dflash["lilicorr_num_layers"]):
        layer, inner = f"layers.{i}.", int(h * dflash["lilicorr_mlp_ratio"])
        shapes |= {layer + "attn_norm.weight": (h,), layer + "mlp_norm.weight": (h,)}
        shapes |= {layer + "attn.in_proj_weight": (3 * h, h), layer + "attn.in_proj_bias": (3 * h,)}
        linears |= {layer + "attn.out_proj": (h, h), layer + "mlp.0": (inner, h), layer + "mlp.2": (h, inner)}
    for name, shape in linears.items():
        shapes |= {name + ".weight": shape, name + ".bias": shape[:1]}
    return {"feature_mlp.0.weight": (5,), "feature_mlp.0.bias": (5,), **shapes}


def write_drafter_folder(folder: Path, *, seed: int = 1, **changes: Any) -> None:
    """Write config.json and model.safetensors of a random drafter; `changes` as in drafter_config."""
    import torch
    from safetensors.torch import save_file

    config = drafter_config(**changes)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in drafter_shapes(config).items():
        noise = torch.randn(shape, generator=generator)
        tensors[name] = 1 + 0.1 * noise if "norm" in name and name.endswith("weight") else 0.2 * noise
    rows = config.get("draft_vocab_size") or VOCAB
    if config.get("draft_vocab_size"):
        tensors["d2t"] = 2 * torch.arange(rows)  # keeps every third token of the target
    if config.get("has_own_lm_head"):
        tensors["lm_head.weight"] = torch.randn(rows, HIDDEN, generator=generator)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file(tensors, folder / "model.safetensors")


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A read-only tiny target folder."""
    folder = tmp_path_factory.mktemp("target")
    write_target(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A read-only tiny drafter folder with a LiLiCorr head, fitting `tiny_target`."""
    folder = tmp_path_factory.mktemp("drafter")
    write_drafter_folder(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_bundle(tiny_target: Path, tiny_drafter: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A read-only fp32 bundle of `tiny_target` and `tiny_drafter`, built once."""
    from lilicorr.export.bundle import build_bundle
    from lilicorr.export.options import BuildOptions
    from lilicorr.export.progress import Progress

    out = tmp_path_factory.mktemp("bundles") / "tiny"
    build_bundle(tiny_target, tiny_drafter, out, BuildOptions(), Progress(None))
    return out


@pytest.fixture
def own_bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    """A copy of the tiny bundle that a test may damage."""
    return Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))


@pytest.fixture
def own_pair(tiny_target: Path, tiny_drafter: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Copies of the tiny target and drafter that a test may damage."""
    target, drafter = tmp_path / "target", tmp_path / "drafter"
    shutil.copytree(tiny_target, target)
    shutil.copytree(tiny_drafter, drafter)
    return target, drafter


def edit_json(path: Path, change: dict[str, Any]) -> None:
    """Update the top level of the JSON file `path` with `change`; a value of None removes the key. A manifest is sealed again."""
    data = json.loads(path.read_text())
    data.update(change)
    data = {key: value for key, value in data.items() if value is not None}
    path.write_text(json.dumps(seal(data) if path.name == FILE_NAME else data))
