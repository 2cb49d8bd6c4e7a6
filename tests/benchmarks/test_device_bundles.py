"""Bundles of several forms at once: each in its folder, and one that cannot be built keeps none of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from lilicorr.runtime.manifest import read_manifest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import device_bundles

    return device_bundles


def test_one_that_fails_keeps_none_of_the_others(script, tiny_target, tiny_drafter, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "LIMITS", ("--max-context", "64"))
    monkeypatch.setattr(script, "LIMIT_S", 900)
    forms = {"int8": ("--weights", "int8", "--weights-block", "32"), "wide": ("--weights", "int4")}
    report = script.build_all(tiny_target, tiny_drafter, tmp_path, forms)
    assert set(report) == {"int8", "failed", "seconds"}
    assert read_manifest(Path(report["int8"])).target.quantisation.bits == 8
    assert list(report["failed"]) == ["wide"]
    assert report["failed"]["wide"].startswith("error: --weights int4: ")
    assert "which blocks of 64 do not divide" in report["failed"]["wide"]


def test_one_that_takes_too_long_is_stopped(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "BUILD", ["sh", "-c", "exec sleep 60"])
    monkeypatch.setattr(script, "LIMIT_S", 0)
    report = script.build_all(tmp_path, tmp_path, tmp_path, {"slow": ()})
    assert report["failed"] == {"slow": "stopped after 0 s"}
    assert report["seconds"] < 30
