"""The engine folder: strict reading, and damaged engine files found before TensorRT sees them."""

import dataclasses
import hashlib
import json

import pytest

from lilicorr.runtime.engine_set import (
    FILE_NAME,
    Engine,
    EngineSet,
    PluginBuild,
    Profile,
    Range,
    read_engine_set,
    rebuild_command,
    require_whole,
)
from lilicorr.runtime.errors import EXIT_ENGINE, UserError

CONTENT = b"an engine"


def example(**changes) -> EngineSet:
    profile = Profile("verify", {"tokens": Range((1, 1), (1, 8), (4, 8))})
    engine = Engine("target.engine", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT), (profile,), {"graph": "ab"})
    whole = EngineSet(
        schema_version=1,
        lilicorr_version="0.1.0",
        created="2026-11-29T00:00:00+00:00",
        command=("lilicorr-export", "engine"),
        backend="tensorrt",
        tensorrt_version="10.3.0",
        compute_capabilities=("8.7",),
        system="linux",
        machine="aarch64",
        precision="fp16",
        attention="two-part",
        bundle_sha256="cd",
        plugin=PluginBuild("GreedyWalk", "lilicorr", "1", "ef" * 32),
        engines={"target": engine},
    )
    return dataclasses.replace(whole, **changes)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / FILE_NAME).write_text(example().to_json())
    (tmp_path / "target.engine").write_bytes(CONTENT)
    return tmp_path


def test_what_is_written_is_read(folder):
    assert read_engine_set(folder) == example()
    require_whole(folder, example())


def test_a_folder_without_description_names_the_command(tmp_path):
    with pytest.raises(UserError, match="not an engine folder") as caught:
        read_engine_set(tmp_path)
    assert caught.value.hint == rebuild_command("tensorrt")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 2}, "schema_version 2, this lilicorr reads 1"),
        ({"backend": 3}, "backend: expected str, found 3"),
        ({"unknown": 1}, "unknown: unknown field"),
    ],
)
def test_wrong_fields_are_named(folder, change, message):
    data = json.loads((folder / FILE_NAME).read_text()) | change
    (folder / FILE_NAME).write_text(json.dumps(data))
    with pytest.raises(UserError, match=message):
        read_engine_set(folder)


def test_an_engine_outside_the_folder_is_refused(folder):
    data = json.loads((folder / FILE_NAME).read_text())
    data["engines"]["target"]["file"] = "../target.engine"
    (folder / FILE_NAME).write_text(json.dumps(data))
    with pytest.raises(UserError, match=r"`\.\./target\.engine` is a path"):
        read_engine_set(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [(CONTENT[:-1], "has 8 bytes, expected 9"), (b"An engine", "has sha256"), (None, "`target.engine` is missing")],
)
def test_a_damaged_engine_is_exit_code_4(folder, content, message):
    (folder / "target.engine").unlink()
    if content is not None:
        (folder / "target.engine").write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        require_whole(folder, example())
    assert caught.value.exit_code == EXIT_ENGINE
    assert caught.value.hint.endswith("--force")
