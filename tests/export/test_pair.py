"""The pair check: a good pair passes, every kind of mismatch is named, and all of them in one message."""

import json
import shutil

import pytest

from lilicorr.export.pair import check_pair
from lilicorr.runtime.errors import UserError
from lilicorr.train.tokenizer_map import map_sha256, read_map
from tests.fixtures import VOCAB, drafter_config, edit_json, write_drafter_folder


def refusal(target, drafter, **options):
    with pytest.raises(UserError) as caught:
        check_pair(target, drafter, **options)
    assert caught.value.hint
    return caught.value.what


def rewrite_config(drafter, **changes):
    """Change the configuration only: the tensors on disk stay."""
    (drafter / "config.json").write_text(json.dumps(drafter_config(**changes)))


def test_a_fitting_pair_passes(tiny_target, tiny_drafter):
    pair = check_pair(tiny_target, tiny_drafter)
    assert (pair.block_size, pair.max_context, pair.target.stop_token_ids) == (5, 512, (2,))
    assert pair.target.eos_token == "<|im_end|>"
    assert pair.warnings == ("the drafter records no tokenizer: token maps were not compared",)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 48}, "`hidden_size`: the drafter expects 48, the target has 32"),
        ({"vocab_size": 301}, "`vocab_size`: the drafter expects 301, the target has 300"),
        ({"num_target_layers": 30}, "`num_target_layers`: the drafter expects 30, the target has 4"),
        ({"rope_theta": 1e6}, "`rope_theta`: the drafter expects 1e+06, the target has 10000"),
        ({"target_layer_ids": [1, 4]}, "`target_layer_ids` [4]: the target has layers 0 to 3"),
        ({"mask_token_id": VOCAB}, "`mask_token_id` 300: the target's embedding has rows 0 to 299"),
        ({"mask_token_id": -1}, "`mask_token_id` -1"),
        ({"block_size": 1}, "`block_size` 1"),
        ({"draft_vocab_size": 100}, "hold no tensor `d2t`"),
        ({"draft_vocab_size": 3}, "`lilicorr_candidate_topk` 4: expected 1 to 3, the drafter's vocabulary"),
        ({"lilicorr_candidate_topk": 0}, "`lilicorr_candidate_topk` 0: expected 1 to 300"),
        ({"target_layer_ids": [1]}, "drafter tensor `fc.weight`: found (32, 64), config.json says (32, 32)"),
        ({"architectures": ["EagleModel"]}, "EagleModel"),
        ({"max_position_embeddings": 100}, "exceeds the drafter's max_position_embeddings 100"),
    ],
)
def test_one_mismatch(own_pair, changes, message):
    target, drafter = own_pair
    rewrite_config(drafter, **changes)
    assert message in refusal(target, drafter, max_context=200)


def test_all_mismatches_at_once(own_pair):
    target, drafter = own_pair
    rewrite_config(drafter, hidden_size=48, vocab_size=301, rope_theta=1e6, target_layer_ids=[1, 40])
    edit_json(target / "config.json", {"model_type": "mamba", "architectures": ["MambaForCausalLM"]})
    what = refusal(target, drafter, block_size=9, max_context=1000)
    for part in ("hidden_size", "vocab_size", "rope_theta", "[40]", "--block-size 9", "--max-context 1000", "MambaFor"):
        assert part in what


def test_a_missing_mask_id_is_named_with_its_full_key(own_pair):
    target, drafter = own_pair
    config = drafter_config()
    del config["dflash_config"]["mask_token_id"]
    (drafter / "config.json").write_text(json.dumps(config))
    assert "`dflash_config.mask_token_id` is missing" in refusal(target, drafter)


def test_another_tokenizer_of_equal_size_is_found(own_pair):
    target, drafter = own_pair
    data = json.loads((target / "tokenizer.json").read_text())
    vocab = data["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    (drafter / "tokenizer.json").write_text(json.dumps(data))
    assert "tokenizers differ in 2 tokens, first 'a'" in refusal(target, drafter)


def test_the_same_tokenizer_passes_and_ends_the_warning(own_pair):
    target, drafter = own_pair
    shutil.copy(target / "tokenizer.json", drafter)
    assert check_pair(target, drafter).warnings == ()


@pytest.mark.parametrize("known", [True, False])
def test_the_recorded_tokenizer_is_compared(own_pair, known):
    target, drafter = own_pair
    found = map_sha256(read_map(target / "tokenizer.json"))
    edit_json(drafter / "config.json", {"lilicorr_provenance": {"tokenizer_sha256": found if known else "0" * 64}})
    if known:
        assert check_pair(target, drafter).warnings == ()
    else:
        assert "trained with another tokenizer" in refusal(target, drafter)


def test_an_ordinary_mask_token_is_a_warning(own_pair):
    target, drafter = own_pair
    rewrite_config(drafter, mask_token_id=200)
    assert any(
        "mask token 200 is the ordinary text token" in warning for warning in check_pair(target, drafter).warnings
    )


@pytest.mark.parametrize("role", ["target", "drafter"])
def test_truncated_safetensors(own_pair, role):
    target, drafter = own_pair
    path = {"target": target, "drafter": drafter}[role] / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    assert "is truncated" in refusal(target, drafter)


def test_both_folders_are_reported_when_both_are_missing(tmp_path):
    what = refusal(tmp_path / "org/target", tmp_path / "org/drafter")
    assert "org/target` is not a folder" in what
    assert "org/drafter` is not a folder" in what
    assert "hf download" in what


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_target_file_is_named(own_pair, name):
    target, drafter = own_pair
    (target / name).unlink()
    expected = "safetensors file" if name == "model.safetensors" else f"has no `{name}`"
    assert expected in refusal(target, drafter)


def test_a_damaged_tokenizer_is_one_error(own_pair):
    target, drafter = own_pair
    (target / "tokenizer.json").write_text("{}")
    assert "cannot be read as a tokenizer" in refusal(target, drafter)


def test_a_target_without_rope_theta_is_refused(own_pair):
    target, drafter = own_pair
    edit_json(target / "config.json", {"rope_parameters": None})
    assert "`rope_theta` is missing" in refusal(target, drafter)


def test_a_drafter_without_head_passes(tiny_target, tmp_path):
    write_drafter_folder(tmp_path, architectures=["DFlashDraftModel"])
    assert check_pair(tiny_target, tmp_path).drafter.config.candidate_topk == 1


def test_a_target_without_template_is_a_warning(own_pair):
    target, drafter = own_pair
    (target / "chat_template.jinja").unlink()
    assert any("no chat template" in warning for warning in check_pair(target, drafter).warnings)


def test_the_template_inside_the_tokenizer_config_is_found(own_pair):
    target, drafter = own_pair
    (target / "chat_template.jinja").unlink()
    edit_json(target / "tokenizer_config.json", {"chat_template": "inline"})
    assert check_pair(target, drafter).target.chat_template == "inline"
