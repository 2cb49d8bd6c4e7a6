"""`inspect` tells what the manifest holds, and refuses what is no bundle."""

import json

import pytest

from lilicorr.export.inspect import inspect_bundle, render
from lilicorr.runtime.errors import UserError


def test_tables(tiny_bundle):
    text = render(tiny_bundle)
    for part in (
        "LlamaForCausalLM",
        "5 of 5 trained, 4 candidates",
        "logit scale 8",
        "target, drafter, scorer",
        "opset",
    ):
        assert part in text


def test_json_says_what_is_shared(tiny_bundle):
    data = json.loads(json.dumps(inspect_bundle(tiny_bundle)))
    assert data["shared"] == {"weights/embedding.bin": ["target", "drafter", "scorer"]}
    assert data["bytes"] == sum(record["bytes"] for record in data["manifest"]["files"])


def test_unchecked_parity_names_the_command(own_bundle):
    (own_bundle / "parity.json").unlink(missing_ok=True)
    assert f"lilicorr-export check {own_bundle}" in render(own_bundle)


def test_a_missing_file_is_refused(own_bundle):
    (own_bundle / "weights/target.bin").unlink()
    with pytest.raises(UserError, match=r"weights/target\.bin"):
        inspect_bundle(own_bundle)


@pytest.mark.parametrize("text", ["", "[]", '{"summary": [{"rung": 1}]}', '{"summary": 3}', "\xff"])
def test_a_damaged_parity_report_names_the_command(own_bundle, text):
    (own_bundle / "parity.json").write_text(text, encoding="latin-1")
    for show in (inspect_bundle, render):
        with pytest.raises(UserError, match="is damaged") as caught:
            show(own_bundle)
        assert caught.value.hint == f"lilicorr-export check {own_bundle}"
