"""Drafter configuration: what is read, what is refused (everything at once, full keys), and the layer rule."""

from __future__ import annotations

import dataclasses

import pytest

from lilicorr.runtime.errors import UserError
from lilicorr.train.config import default_target_layer_ids
from lilicorr.train.config_json import config_from_dict, config_to_dict
from tests.fixtures import drafter_config


def edited(changes: dict, **fixture) -> dict:
    """The fixture's config.json with dotted keys replaced; a value of None removes the key."""
    data = drafter_config(**{"lilicorr_hidden_size": 16} | fixture)
    for key, value in changes.items():
        *parents, leaf = key.split(".")
        node = data[parents[0]] if parents else data
        if value is None:
            node.pop(leaf)
        else:
            node[leaf] = value
    return data


def problem(changes: dict, **fixture) -> str:
    with pytest.raises(UserError) as caught:
        config_from_dict(edited(changes, **fixture), "here/config.json")
    assert "here/config.json" in caught.value.what
    return caught.value.what


def test_reads_every_field():
    config = config_from_dict(edited({}))
    assert (config.hidden_size, config.num_hidden_layers, config.head_dim, config.block_size) == (32, 2, 8, 5)
    assert (config.mask_token_id, config.target_layer_ids, config.rope["rope_theta"]) == (3, (1, 2), 10000.0)
    assert dataclasses.asdict(config.head) == {
        "candidate_topk": 4,
        "hidden_size": 16,
        "num_layers": 1,
        "num_heads": 2,
        "mlp_ratio": 2.0,
        "factor_dim": 8,
        "vector_eps": 1e-4,
        "logit_scale": 8.0,
    }
    assert (config.slots, config.candidate_topk, config.output_size) == (4, 4, 300)


def test_plain_dflash_has_no_head_and_one_candidate():
    config = config_from_dict(drafter_config(architectures=["DFlashDraftModel"]))
    assert config.head is None
    assert config.candidate_topk == 1


@pytest.mark.parametrize(
    "key",
    [
        "dflash_config.lilicorr_logit_scale",
        "dflash_config.lilicorr_vector_eps",
        "dflash_config.lilicorr_candidate_topk",
        "dflash_config.lilicorr_hidden_size",
        "dflash_config.lilicorr_num_layers",
        "dflash_config.lilicorr_num_heads",
        "dflash_config.lilicorr_mlp_ratio",
        "dflash_config.lilicorr_factor_dim",
        "dflash_config.mask_token_id",
        "rope_theta",
        "rms_norm_eps",
        "block_size",
        "head_dim",
        "num_target_layers",
    ],
)
def test_missing_field_is_named_with_its_full_key(key):
    assert f"`{key}` is missing" in problem({key: None})


def test_all_problems_at_once():
    text = problem(
        {
            "dflash_config.mask_token_id": None,
            "dflash_config.lilicorr_logit_scale": None,
            "rope_theta": None,
            "hidden_size": "32",
            "num_key_value_heads": 3,
            "hidden_act": "gelu",
        }
    )
    for part in ("mask_token_id` is missing", "logit_scale` is missing", "rope_theta` is missing", "found '32'"):
        assert part in text
    assert "`num_attention_heads` = 4 is not a multiple of `num_key_value_heads` = 3" in text
    assert "`hidden_act` = 'gelu'" in text


def test_layer_ids_are_derived_or_asked_for():
    derivable = {"dflash_config.target_layer_ids": None, "num_target_layers": 12}
    assert config_from_dict(edited(derivable)).target_layer_ids == (1, 9)
    text = problem({"dflash_config.target_layer_ids": None, "num_target_layers": None})
    assert "`dflash_config.target_layer_ids` is missing and cannot be derived" in text
    text = problem({"dflash_config.target_layer_ids": None, "num_target_layers": 1, "rope_theta": None})
    assert "fewer than the drafter's 2" in text
    assert "`rope_theta` is missing" in text


@pytest.mark.parametrize(
    ("target_layers", "drafter_layers", "ids"),
    [
        (36, 5, (1, 9, 17, 25, 33)),
        (36, 1, (18,)),
        (30, 2, (1, 27)),
        (5, 3, (1, 2, 2)),  # 1.5 rounds half to even
        (7, 3, (1, 2, 4)),  # 2.5 rounds half to even
        (2, 2, (1, 1)),
        (1, 1, (0,)),
    ],
)
def test_default_layer_rule(target_layers, drafter_layers, ids):
    assert default_target_layer_ids(drafter_layers, target_layers) == ids


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"architectures": ["DFlash2DraftModel"]}, "DFlash2DraftModel"),
        ({"architectures": []}, "is not a drafter we know"),
        ({"architectures": None}, "is not a drafter we know"),
        ({"architectures": "DFlashDraftModel"}, "is not a drafter we know"),
        ({"dflash_config": "none"}, "`dflash_config.mask_token_id` is missing"),
        ({"dflash_config.target_layer_ids": []}, "expected layer numbers, found []"),
        ({"dflash_config.target_layer_ids": ["1"]}, "expected layer numbers"),
        ({"dflash_config.projector_type": "domino"}, "'domino' is not supported, expected 'lilicorr'"),
        ({"dflash_config.mask_token_id": True}, "expected int, found True"),
        ({"dflash_config.conv_kernel_size": 2}, "both or neither"),
        ({"dflash_config.conv_kernel_size": 2, "dflash_config.conv_group_size": 5}, "is not a multiple of"),
        ({"dflash_config.lilicorr_num_heads": 3}, "`dflash_config.lilicorr_hidden_size` = 16 is not a multiple of"),
        ({"dflash_config.lilicorr_num_heads": 0}, "is not a multiple of"),
        ({"dflash_config.block_size": 8}, "disagree"),
        ({"layer_types": 3}, "`layer_types`: expected list, found 3"),
        ({"layer_types": ["full_attention"]}, "has 1 entries, expected num_hidden_layers = 2"),
        ({"layer_types": ["sliding_attention"] * 2}, "`sliding_window` is missing"),
        ({"dflash_config.use_swa": True, "dflash_config.swa_window_size": 4}, "names no sliding layer"),
        ({"attention_sink_bias": True}, "`attention_sink_bias` is not supported"),
        ({"final_logit_softcapping": 30.0}, "`final_logit_softcapping` = 30.0 is not supported"),
        ({"input_embedding_scale": 2.0}, "`input_embedding_scale` = 2.0 is not supported"),
        ({"rope_scaling": {"rope_type": "spiral", "factor": 2.0}}, "'spiral' is not supported"),
        ({"rope_parameters": {"rope_type": "default"}, "rope_theta": None}, "`rope_theta` is missing"),
    ],
)
def test_refused(changes, text):
    assert text in problem(changes)


def test_block_size_inside_dflash_config_is_read():
    assert config_from_dict(edited({"block_size": None, "dflash_config.block_size": 5})).block_size == 5


def test_head_width_zero_means_the_models_width():
    assert config_from_dict(edited({"dflash_config.lilicorr_hidden_size": 0})).head.hidden_size == 32


@pytest.mark.parametrize(
    ("changes", "rope"),
    [
        ({}, {"rope_type": "default", "rope_theta": 10000.0}),
        ({"rope_theta": 5}, {"rope_type": "default", "rope_theta": 5.0}),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            {"rope_type": "linear", "type": "linear", "factor": 2.0, "rope_theta": 10000.0},
        ),
        ({"rope_parameters": {"rope_theta": 7.0}, "rope_theta": None}, {"rope_type": "default", "rope_theta": 7.0}),
    ],
)
def test_rope_spellings(changes, rope):
    assert config_from_dict(edited(changes)).rope == rope


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"architectures": ["DFlashDraftModel"]},
        {"draft_vocab_size": 64, "has_own_lm_head": True},
        {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16, "causal": True},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}},
    ],
    ids=["head", "plain", "reduced vocabulary", "sliding", "yarn"],
)
def test_written_and_read_again_is_the_same(changes):
    config = config_from_dict(drafter_config(**changes))
    written = config_to_dict(config)
    assert config_from_dict(written) == config
    for key, value in changes.items():
        assert (written["dflash_config"] if key == "causal" else written)[key] == value


def test_published_keys_are_written_and_unknown_ones_carried_through():
    written = config_to_dict(config_from_dict(drafter_config(bos_token_id=1, auto_map={"AutoModel": "dflash.X"})))
    expected = drafter_config(bos_token_id=1, auto_map={"AutoModel": "dflash.X"})
    expected.pop("torch_dtype")  # the writer of the tensors states it
    assert written == expected


@pytest.mark.parametrize("key", ["lilicorr_logit_scale", "lilicorr_vector_eps"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_number_that_is_not_finite(key, value):
    with pytest.raises(UserError, match=rf"`dflash_config\.{key}`: expected a finite number, found"):
        config_from_dict(drafter_config(**{key: value}))
