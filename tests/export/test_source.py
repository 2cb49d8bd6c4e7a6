"""Odd and damaged files of a target folder: one UserError each, never another exception."""

from __future__ import annotations

from pathlib import Path

import pytest

from lilicorr.export.source import read_target
from lilicorr.runtime.errors import UserError
from tests.fixtures import edit_json


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": "32"}, "`hidden_size`: expected a positive number, found '32'"),
        ({"num_attention_heads": 0}, "`num_attention_heads`: expected a positive number, found 0"),
        ({"max_position_embeddings": -5}, "`max_position_embeddings`: expected a positive number, found -5"),
        ({"head_dim": True}, "`head_dim`: expected a positive number, found True"),
        ({"rope_parameters": {"rope_theta": "abc"}}, "`rope_theta`: expected a positive number, found 'abc'"),
        ({"rope_parameters": [1]}, "`rope_theta` is missing"),
        ({"eos_token_id": "x"}, "`eos_token_id` must be token ids, found 'x'"),
    ],
)
def test_config(own_pair: tuple[Path, Path], change: dict[str, object], message: str) -> None:
    target, _ = own_pair
    edit_json(target / "config.json", change)
    with pytest.raises(UserError) as caught:
        read_target(target)
    assert message in caught.value.what


@pytest.mark.parametrize(
    "text", ["[]", '{"weight_map": {"a": 5}}', '{"weight_map": {"a": "../other/model.safetensors"}}', "{"]
)
def test_index(own_pair: tuple[Path, Path], text: str) -> None:
    target, _ = own_pair
    (target / "model.safetensors.index.json").write_text(text)
    with pytest.raises(
        UserError, match=r"index\.json`(: `weight_map` must name files|: expected a JSON object| cannot be read)"
    ):
        read_target(target)


def test_chat_template_that_is_no_text(own_pair: tuple[Path, Path]) -> None:
    target, _ = own_pair
    (target / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"chat_template\.jinja` cannot be read"):
        read_target(target)


def test_special_token_that_is_no_text(own_pair: tuple[Path, Path]) -> None:
    target, _ = own_pair
    edit_json(target / "tokenizer_config.json", {"eos_token": 5})
    with pytest.raises(UserError, match="special token as text, found 5"):
        read_target(target)
