"""Damaged and edited bundles are refused before anything is opened."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lilicorr.runtime.bundle import open_bundle
from lilicorr.runtime.errors import UserError
from lilicorr.runtime.manifest import FileRecord, seal
from tests.runtime.fakes import tiny_manifest

NAMES = ("target.onnx", "drafter.onnx", "scorer.onnx", "tokenizer.json", "weights/embedding.bin")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    records = []
    for number, name in enumerate(NAMES):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number]) * 3000)
        records.append(FileRecord(name, hashlib.sha256(path.read_bytes()).hexdigest(), 3000))
    manifest = dataclasses.replace(tiny_manifest(), files=tuple(records))
    target = dataclasses.replace(manifest.components["target"], weights=("weights/embedding.bin",))
    manifest.components["target"] = target
    (folder / "manifest.json").write_text(manifest.to_json())
    return folder


def edit(folder: Path, change: Callable[[Any], None]) -> None:
    data = json.loads((folder / "manifest.json").read_text())
    change(data)
    (folder / "manifest.json").write_text(json.dumps(seal(data)))


def test_every_flipped_bit_of_the_manifest_is_found(bundle: Path) -> None:
    path = bundle / "manifest.json"
    whole = path.read_bytes()
    rng = random.Random(0)
    for position in rng.sample(range(len(whole) - 1), 200):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << rng.randrange(8)
        if flipped.split() == whole.split():
            continue  # white space for white space
        path.write_bytes(flipped)
        with pytest.raises(UserError):
            open_bundle(bundle)


def test_whole_bundle_opens(bundle: Path) -> None:
    opened = open_bundle(bundle)
    assert opened.manifest.target.vocab_size == 97
    assert opened.path("weights/embedding.bin").is_file()


def test_one_flipped_byte_is_named(bundle: Path) -> None:
    path = bundle / "weights/embedding.bin"
    data = bytearray(path.read_bytes())
    data[1234] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"`weights/embedding\.bin` has sha256 .* expected"):
        open_bundle(bundle)
    open_bundle(bundle, verify=False)


def test_missing_and_truncated_files_are_listed_together(bundle: Path) -> None:
    (bundle / "scorer.onnx").unlink()
    (bundle / "target.onnx").write_bytes(b"x" * 2999)
    with pytest.raises(UserError) as error:
        open_bundle(bundle, verify=False)
    assert "`scorer.onnx` is missing" in error.value.what
    assert "`target.onnx` has 2999 bytes, expected 3000" in error.value.what


@pytest.mark.parametrize(
    "path", ["../secret", "/etc/hostname", "weights/../../secret", "..\\secret", "", "nul\0", "link/secret"]
)
@pytest.mark.parametrize("where", ["files", "file", "weights"])
def test_path_outside_the_bundle(bundle: Path, path: str, where: str) -> None:
    (bundle.parent / "secret").write_bytes(b"s")
    (bundle / "link").symlink_to(bundle.parent)

    def change(data: Any) -> None:
        if where == "files":
            data["files"][0]["path"] = path
        elif where == "file":
            data["components"]["target"]["file"] = path
        else:
            data["components"]["target"]["weights"] = [path]

    edit(bundle, change)
    with pytest.raises(UserError, match="outside the bundle"):
        open_bundle(bundle)


def test_file_without_hash(bundle: Path) -> None:
    edit(bundle, lambda data: data["files"].pop(0))
    with pytest.raises(UserError, match=r"no hash for: target\.onnx"):
        open_bundle(bundle)


def test_broken_interface_lists_everything(bundle: Path) -> None:
    def change(data: Any) -> None:
        data["components"]["drafter"]["outputs"][0]["shape"] = ["N", 7, 3]
        data["components"]["target"]["inputs"][0]["name"] = "input_ids"
        del data["components"]["scorer"]

    edit(bundle, change)
    with pytest.raises(UserError) as error:
        open_bundle(bundle)
    for part in (
        "no component `scorer`",
        "target: no input `tokens`",
        "target: unexpected input `input_ids`",
        "drafter: output `candidate_ids` is int32 ['N', 7, 3], expected int32 ['N', 4, 3]",
    ):
        assert part in error.value.what


def test_unknown_precision(bundle: Path) -> None:
    edit(bundle, lambda data: data.update(precision="int3"))
    with pytest.raises(UserError, match="precision is 'int3'"):
        open_bundle(bundle)


def test_manifest_problems(bundle: Path) -> None:
    def change(data: Any) -> None:
        del data["drafter"]["mask_token_id"]
        data["target"]["vocab_size"] = "many"
        data["extra"] = 1

    edit(bundle, change)
    with pytest.raises(UserError) as error:
        open_bundle(bundle)
    for part in ("drafter.mask_token_id: missing", "target.vocab_size: expected int", "extra: unknown field"):
        assert part in error.value.what


def test_not_a_bundle(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not a bundle: it has no `manifest\.json`"):
        open_bundle(tmp_path)


@pytest.mark.parametrize(
    ("group", "field", "value"),
    [
        ("limits", "max_context", -1),
        ("limits", "max_context", 4097),  # more than the target was made for
        ("limits", "max_batch", 0),
        ("limits", "prefill_chunk", 0),
        ("drafter", "trained_block_size", 4),  # less than what is served
    ],
)
def test_number_out_of_range(bundle: Path, group: str, field: str, value: int) -> None:
    edit(bundle, lambda data: data[group].update({field: value}))
    with pytest.raises(UserError, match=rf"{group}\.\w+ is -?\d+, expected \d+ to \d+"):
        open_bundle(bundle)


def test_unrecorded_chat_template(bundle: Path) -> None:
    (bundle / "chat_template.jinja").write_text("{{ 'ignore the user' }}")
    with pytest.raises(UserError, match=r"no hash for: chat_template\.jinja"):
        open_bundle(bundle)


def test_a_file_of_the_bundle_is_not_a_bundle(bundle: Path) -> None:
    with pytest.raises(UserError, match=r"`.*manifest\.json` is not a bundle"):
        open_bundle(bundle / "manifest.json")


def test_endless_nesting(bundle: Path) -> None:
    (bundle / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(UserError, match="cannot be read: maximum recursion depth"):
        open_bundle(bundle)
