"""The dry run against what a build really writes."""

import json
from pathlib import Path

import pytest

from lilicorr.export.options import BuildOptions
from lilicorr.export.pair import check_pair
from lilicorr.export.plan import make_plan, render
from lilicorr.runtime.manifest import read_manifest
from tests.fixtures import write_drafter_folder

SMOLLM2 = Path(__file__).parents[2] / "build" / "smollm2-135m-hf"


def test_planned_interfaces_and_files_are_those_of_the_build(tiny_target, tiny_drafter, tiny_bundle):
    plan = make_plan(check_pair(tiny_target, tiny_drafter), BuildOptions())
    manifest = read_manifest(tiny_bundle)
    assert set(plan.files) == {record.path for record in manifest.files} | {"manifest.json"}
    for name, component in manifest.components.items():
        for side in ("inputs", "outputs"):
            assert set(plan.graphs[name][side]) == set(getattr(component, side))
    real = sum(record.bytes for record in manifest.files)
    assert 0.7 < plan.disk_bytes / real < 1.5  # tiny weights: graph files and page padding weigh most here
    weights = {record.path: record.bytes for record in manifest.files if record.path.startswith("weights/")}
    assert plan.files["weights/embedding.bin"] == weights["weights/embedding.bin"]


def test_cache_bytes_at_full_context_and_batch(tiny_target, tiny_drafter):
    plan = make_plan(
        check_pair(tiny_target, tiny_drafter), BuildOptions(max_context=100, max_batch=3, precision="fp16")
    )
    assert plan.cache_bytes == {"target": 2 * 4 * 2 * 8 * 100 * 3 * 2, "drafter": 2 * 2 * 2 * 8 * 100 * 3 * 2}
    assert plan.precision == {"target": "float16", "drafter": "float16", "scorer": "float16"}


def test_native_caches_have_room_for_the_rows_of_a_call(tiny_target, tiny_drafter):
    options = BuildOptions(max_context=100, max_batch=3, attention="native")
    plan = make_plan(check_pair(tiny_target, tiny_drafter), options)
    rows = 100 + options.prefill_chunk + 5  # the block is 5
    assert plan.cache_bytes["drafter"] == 2 * 2 * 2 * 8 * rows * 3 * 4
    assert f"(N, 2, {rows}, 8)" in render(plan)


def test_half_precision_halves_the_weights(tiny_target, tiny_drafter):
    pair = check_pair(tiny_target, tiny_drafter)
    full, half = (make_plan(pair, BuildOptions(precision=p)).files for p in ("fp32", "bf16"))
    assert all(full[name] == 2 * half[name] for name in full if name.startswith("weights/"))


def test_the_table_and_the_json_say_the_same(tiny_target, tiny_drafter):
    plan = make_plan(check_pair(tiny_target, tiny_drafter, block_size=3), BuildOptions(block_size=3))
    text = render(plan)
    assert "block 3 (anchor + 2 slots), context 512, batch 4" in text
    assert "k_cache_{i}" in text
    assert "(N, 2, 4)" in text  # candidate_ids: S = 2, K = 4
    assert "warning: the drafter records no tokenizer" in text
    data = json.loads(json.dumps(plan.to_dict()))
    assert data["disk_bytes"] == sum(data["files"].values())


@pytest.mark.smollm2
def test_the_real_target(tmp_path):
    if not SMOLLM2.is_dir():
        pytest.skip(f"{SMOLLM2} is missing: make target")
    changes = {"hidden_size": 576, "vocab_size": 49152, "rope_theta": 100000.0, "num_target_layers": 30}
    write_drafter_folder(tmp_path, max_position_embeddings=8192, target_layer_ids=[1, 27], **changes)
    pair = check_pair(SMOLLM2, tmp_path)
    assert pair.target.stop_token_ids == (2,)
    plan = make_plan(pair, BuildOptions())
    assert plan.limits.max_context == 2048
    assert plan.files["weights/embedding.bin"] == 49152 * 576 * 4
    assert plan.files["weights/target.bin"] == (134_515_008 - 49152 * 576) * 4
    assert plan.cache_bytes["target"] == 30 * 2 * 3 * 64 * 4 * 2048 * 4
