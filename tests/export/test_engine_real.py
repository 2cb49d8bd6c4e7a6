"""Bundles of real size compile ahead of time for SM89 and SM120: SmolLM2-135M, and two layers shaped like Qwen3-0.6B.

The drafters are random: what compiles depends on shapes. Nothing runs an engine.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lilicorr.export.bundle import build_bundle
from lilicorr.export.options import BuildOptions
from lilicorr.export.progress import Progress
from lilicorr.runtime.engine_set import read_engine_set, require_whole
from tests.export.test_engine import engines_of, environment, run
from tests.fixtures import write_drafter_folder, write_tokenizer
from tests.plugins_trt.tools import ROOT

__all__ = ["environment"]

SMOLLM2 = ROOT / "build" / "smollm2-135m-hf"
QWEN3 = {
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
}


def qwen3_folders(folder: Path, vocabulary: int = QWEN3["vocab_size"]) -> tuple[Path, Path]:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    target, drafter = folder / "target", folder / "drafter"
    shape = QWEN3 | {"vocab_size": vocabulary}
    config = Qwen3Config(
        **shape,
        num_hidden_layers=2,
        intermediate_size=3072,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    Qwen3ForCausalLM(config).save_pretrained(target)
    write_tokenizer(target)
    shape |= {"num_target_layers": 2, "target_layer_ids": [0, 1], "intermediate_size": 3072}
    write_drafter_folder(
        drafter, **shape, max_position_embeddings=2048, rope_theta=1e6, block_size=8, lilicorr_candidate_topk=8
    )
    return target, drafter


def smollm2_folders(folder: Path) -> tuple[Path, Path]:
    if not (SMOLLM2 / "config.json").is_file():
        pytest.skip(f"no `{SMOLLM2}`: run `make target`")
    shape = {
        "hidden_size": 576,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "vocab_size": 49152,
    }
    shape |= {"num_target_layers": 30, "target_layer_ids": [1, 10, 19, 28], "intermediate_size": 1536}
    write_drafter_folder(folder / "drafter", **shape, max_position_embeddings=2048, rope_theta=1e5, block_size=8)
    return SMOLLM2, folder / "drafter"


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize(
    ("folders", "attention"),
    [
        (qwen3_folders, "two-part"),
        (qwen3_folders, "native"),
        pytest.param(smollm2_folders, "two-part", marks=pytest.mark.smollm2),
    ],
)
def test_all_three_graphs_compile(folders, attention, precision, environment, tmp_path):
    target, drafter = folders(tmp_path)
    bundle = tmp_path / "bundle"
    build_bundle(target, drafter, bundle, BuildOptions(precision=precision, attention=attention), Progress(None))
    done = run(bundle, environment)
    assert done.returncode == 0, done.stderr
    engines = read_engine_set(engines_of(bundle))
    require_whole(engines_of(bundle), engines)
    assert (engines.precision, engines.attention) == (precision, attention)
    assert set(engines.engines) == {"target", "drafter", "scorer"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weights", "block", "attention"),
    [("int8", 64, "two-part"), ("int8", 64, "native"), ("int4", 128, "two-part"), ("int4", 64, "native")],
)
def test_integer_weights_compile_in_both_forms_of_attention(weights, block, attention, environment, tmp_path):
    target, drafter = qwen3_folders(tmp_path, vocabulary=4096)  # its product stays a float: a small one saves time
    options = BuildOptions(precision="fp16", weights=weights, weights_block=block, attention=attention)
    build_bundle(target, drafter, tmp_path / "bundle", options, Progress(None))
    done = run(tmp_path / "bundle", environment, ahead=("--backend", "tensorrt-rtx", "--compute-capability", "8.9"))
    assert done.returncode == 0, done.stderr
    folder = engines_of(tmp_path / "bundle")
    engines = read_engine_set(folder)
    require_whole(folder, engines)
    rows = [line.split("\t") for line in (folder / "target.layers.tsv").read_text().splitlines()]
    dequantised = [row[0] for row in rows if row[1] == "DequantizeLinear"]
    assert len(dequantised) >= 2 * 4  # layers; q, k and v are one product, gate and up may be one
    assert set(dequantised) == {"fp16"}
    weights_of_layers = 2 * 1024 * (2048 + 1024 + 1024 + 2048 + 3 * 3072)
    assert engines.engines["target"].bytes < 2 * weights_of_layers  # as integers, not unfolded to fp16
