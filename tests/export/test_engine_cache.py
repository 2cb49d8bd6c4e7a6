"""Reasons to build an engine again, and what it depends on."""

import dataclasses

import pytest

from lilicorr.export.engine_cache import facts, reason_to_build
from lilicorr.export.engine_profiles import profiles_for
from lilicorr.runtime.engine_set import Engine
from lilicorr.runtime.manifest import read_manifest

FACTS = {"graph": "a" * 64, "TensorRT": "10.3.0", "plugin": "none"}
OLD = Engine("target.engine", "00", 1, (), FACTS)


def reason(old=OLD, wanted=FACTS, force=False, whole=True):
    return reason_to_build(old, wanted, force=force, whole=whole)


def test_an_engine_that_still_serves_needs_no_reason():
    assert reason() is None


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"force": True}, "--force"),
        ({"old": None}, "not built yet"),
        ({"whole": False}, "`target.engine` is missing or damaged"),
        ({"wanted": FACTS | {"TensorRT": "10.16.1"}}, "TensorRT was 10.3.0, is 10.16.1"),
        ({"wanted": FACTS | {"graph": "b" * 64}}, "graph changed"),
        ({"wanted": FACTS | {"new": "1"}}, "new changed"),
        (
            {"wanted": {"graph": "b" * 64, "plugin": "none", "TensorRT": "11.0"}},
            "graph changed, TensorRT was 10.3.0, is 11.0",
        ),
    ],
)
def test_every_reason_is_said(arguments, expected):
    assert reason(**arguments) == expected


def test_an_engine_depends_on_its_graph_weights_and_profiles(tiny_bundle):
    manifest = read_manifest(tiny_bundle)
    profiles = profiles_for(manifest, "scorer")
    before = facts(manifest, "scorer", profiles, {"backend": "tensorrt"}, {"level": "3"})
    assert before["backend"] == "tensorrt"
    assert before["level"] == "3"
    for name, path in (("graph", "scorer.onnx"), ("weights", manifest.components["scorer"].weights[0])):
        files = tuple(dataclasses.replace(f, sha256="0") if f.path == path else f for f in manifest.files)
        after = facts(dataclasses.replace(manifest, files=files), "scorer", profiles, {}, {})
        assert [key for key in ("graph", "weights", "profiles") if after[key] != before[key]] == [name]
    other = facts(manifest, "scorer", profiles_for(manifest, "target"), {}, {})
    assert other["profiles"] != before["profiles"]
