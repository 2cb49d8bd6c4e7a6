"""Recipes: every wrong field at once, overrides, and what only shows against the target."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from transformers import LlamaConfig, Qwen3Config

from lilicorr.runtime.errors import UserError
from lilicorr.train.config import DrafterConfig, HeadConfig
from lilicorr.train.drafter import Drafter
from lilicorr.train.recipe import read_recipe

RECIPES = Path(__file__).parents[2] / "recipes"
RECIPE = {
    "target": "t",
    "responses": ["r.jsonl"],
    "out": "o",
    "drafter": {
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "block_size": 4,
        "mask_token_id": 3,
    },
    "head": {
        "enabled": True,
        "candidate_topk": 4,
        "hidden_size": 16,
        "num_layers": 1,
        "num_heads": 2,
        "mlp_ratio": 2.0,
        "factor_dim": 8,
        "vector_eps": 1e-4,
        "logit_scale": 8.0,
    },
}
TARGET = LlamaConfig(hidden_size=32, num_hidden_layers=6, vocab_size=300, rope_theta=1e4, max_position_embeddings=512)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    return tmp_path / "recipe.yaml"


def refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        read_recipe(path, overrides)
    return caught.value.what


def test_reads_and_defaults(path):
    recipe = read_recipe(path)
    assert recipe.drafter.target_layer_ids is None
    assert recipe.head.vector_eps == 1e-4
    assert (recipe.objective.head_ce, recipe.objective.head_margin, recipe.objective.head_penalty) == (0.25, 0.0, 0.25)


def test_the_shipped_recipes_are_valid():
    recipes = sorted(RECIPES.glob("*.yaml"))
    assert recipes
    for recipe in recipes:
        read_recipe(recipe)


# From the targets' own config.json; captured layers; sizes of drafter and head in millions, as far as arXiv 2608.20530 gives them.
QWEN3 = {
    "qwen3-0.6b": ((1024, 28, 16, 3072), (1, 7, 13, 19, 25), None, None),
    "qwen3-4b": ((2560, 36, 32, 9728), (1, 9, 17, 25, 33), None, 32.04),
    "qwen3-8b": ((4096, 36, 32, 12288), (1, 9, 17, 25, 33), 1048.6, 36.76),
}


@pytest.mark.parametrize("name", QWEN3)
def test_the_published_recipes(name):
    (hidden, layers, heads, inner), ids, drafter_size, head_size = QWEN3[name]
    target = Qwen3Config(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=inner,
        vocab_size=151936,
        max_position_embeddings=40960,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )
    recipe = read_recipe(RECIPES / f"{name}.yaml")
    config = recipe.drafter_config(target, None)
    assert config == DrafterConfig(
        hidden_size=hidden,
        num_hidden_layers=5,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=inner,
        rms_norm_eps=1e-6,
        vocab_size=151936,
        max_position_embeddings=40960,
        rope={"rope_type": "default", "rope_theta": 1e6},
        block_size=16,
        mask_token_id=151669,
        target_layer_ids=ids,
        num_target_layers=layers,
        head=HeadConfig(8, 1024, 2, 8, 2.0, 1024, 1e-4, 8.0),
    )
    assert (recipe.objective.decay, recipe.objective.dpace, recipe.objective.soft) == (7.0, 0.0, 0.0)
    objective = recipe.objective
    assert (objective.head_ce, objective.head_margin, objective.head_penalty) == (0.25, 0.0, 0.25)
    assert (recipe.learning_rate, recipe.warmup, recipe.weight_decay, recipe.max_grad_norm) == (6e-4, 0.04, 0.0, 1.0)
    assert (recipe.anchors_per_sequence, recipe.max_length, recipe.sequences_per_step) == (512, 3072, 64)
    assert (recipe.bf16, recipe.seed, recipe.keep_features) == (True, 42, False)
    with torch.device("meta"):
        drafter = Drafter(config)
    head = sum(p.numel() for p in drafter.head.parameters()) / 1e6
    if head_size:
        assert head == pytest.approx(head_size, abs=0.01)
    if drafter_size:
        assert sum(p.numel() for p in drafter.parameters()) / 1e6 - head == pytest.approx(drafter_size, abs=0.1)


def test_overrides(path):
    recipe = read_recipe(
        path, ["steps=7", "drafter.target_layer_ids=[0, 2]", "objective.decay=3", "learning_rate=1e-3", "threads=null"]
    )
    assert (recipe.steps, recipe.drafter.target_layer_ids, recipe.threads) == (7, [0, 2], None)
    assert (recipe.objective.decay, recipe.learning_rate) == (3.0, 0.001)
    assert isinstance(recipe.objective.decay, float)


def test_every_problem_at_once(path):
    data = {**RECIPE, "stepz": 3, "drafter": {**RECIPE["drafter"], "head_dim": "8", "heads": 2}}
    del data["target"]
    data["head"] = {k: v for k, v in RECIPE["head"].items() if k not in ("logit_scale", "vector_eps")}
    data["responses"] = ["a", 3]
    path.write_text(yaml.safe_dump(data))
    text = refusal(path, "bf16=1", "seed=true", "objective.decay=soon", "head.enabled=maybe")
    for part in (
        "`stepz` is unknown",
        "`drafter.heads` is unknown",
        "`drafter.head_dim`: expected <class 'int'>, found '8'",
        "`target` is missing",
        "`head.logit_scale` is missing",
        "`head.vector_eps` is missing",
        "`responses[1]`: expected <class 'str'>, found 3",
        "`bf16`: expected <class 'bool'>, found 1",
        "`seed`: expected <class 'int'>, found True",
        "`objective.decay`: expected <class 'float'>, found 'soon'",
        "`head.enabled`: expected <class 'bool'>, found 'maybe'",
    ):
        assert part in text
    assert len(text.splitlines()) == 1 + 11


@pytest.mark.parametrize(
    "content", [b"target: [", b"- a\n- b", b"", b"\xff", b"just text"], ids=["yaml", "list", "empty", "bytes", "text"]
)
def test_unreadable(path, content):
    path.write_bytes(content)
    assert "recipe.yaml" in refusal(path)
    assert "recipe.yaml" in refusal(path, "steps=3")


def test_absent_file_and_override_into_a_number(path, tmp_path):
    assert "cannot be read" in refusal(tmp_path / "absent.yaml")
    path.write_text(yaml.safe_dump(RECIPE | {"steps": 4}))
    assert "cannot be read" in refusal(path, "steps.deep=3")


def test_a_head_without_any_objective_is_refused(path):
    off = ["objective.head_ce=0", "objective.head_penalty=0"]
    assert "would stay random" in refusal(path, *off)
    assert read_recipe(path, [*off, "head.enabled=false"]).head.enabled is False
    assert "objective" in refusal(path, "objective.head_ce=-1")


def test_drafter_config_takes_the_rest_from_the_target(path):
    config = read_recipe(path).drafter_config(TARGET, None)
    assert (config.hidden_size, config.vocab_size, config.num_target_layers) == (32, 300, 6)
    assert config.rope["rope_theta"] == 1e4
    assert config.target_layer_ids == (1, 3)
    assert config.draft_vocab_size is None
    assert config.head.logit_scale == 8.0
    chosen = read_recipe(path, ["drafter.target_layer_ids=[0, 5]", "drafter.draft_vocab_size=9", "head.enabled=false"])
    config = chosen.drafter_config(TARGET, list(range(9)))
    assert (config.target_layer_ids, config.draft_vocab_size, config.head) == ((0, 5), 9, None)


def test_what_does_not_fit_the_target_is_listed_at_once(path):
    recipe = read_recipe(
        path,
        [
            "drafter.mask_token_id=300",
            "drafter.target_layer_ids=[1, 6]",
            "drafter.draft_vocab_size=301",
            "drafter.block_size=1",
            "drafter.num_key_value_heads=3",
            "head.num_heads=5",
            "head.candidate_topk=302",
        ],
    )
    with pytest.raises(UserError) as caught:
        recipe.drafter_config(TARGET, None)
    for part in (
        "`drafter.mask_token_id` 300: the target's embedding has rows 0 to 299",
        "`drafter.target_layer_ids` [1, 6]: the target has layers 0 to 5",
        "`drafter.draft_vocab_size` 301",
        "`drafter.block_size` 1",
        "`drafter.num_attention_heads` must be a multiple",
        "`head.hidden_size` must be a multiple",
        "`head.candidate_topk` 302",
    ):
        assert part in caught.value.what
