"""What is refused before any builder starts: device, precision and plugin; and the order and reasons of what remains."""

import dataclasses
import hashlib
from types import SimpleNamespace

import pytest

from lilicorr.export import engine_plan
from lilicorr.export.engine_plan import capabilities_for, describe_engines, plan_engines, plugin_library
from lilicorr.export.options import EngineOptions
from lilicorr.runtime.bundle import open_bundle
from lilicorr.runtime.engine_set import Engine
from lilicorr.runtime.errors import UserError

TRT = SimpleNamespace(__version__="1.7", ComputeCapability=SimpleNamespace(__members__={"SM86": 0, "SM89": 1}))


@pytest.fixture
def bundle(tiny_bundle):
    return open_bundle(tiny_bundle, verify=False)


@pytest.fixture
def orin(monkeypatch):
    monkeypatch.setattr(engine_plan, "compute_capability", lambda: "8.7")


@pytest.fixture
def no_gpu(monkeypatch):
    def missing():
        raise UserError("no NVIDIA driver")

    monkeypatch.setattr(engine_plan, "compute_capability", missing)


def choose(bundle, backend, *capabilities):
    return capabilities_for(bundle, EngineOptions(backend=backend, compute_capabilities=capabilities), TRT)


def test_tensorrt_builds_for_the_gpu_here(bundle, orin):
    assert choose(bundle, "tensorrt") == choose(bundle, "tensorrt", "8.7") == ("8.7",)
    with pytest.raises(UserError, match=r"compute capability 8\.7 here, 8\.9 asked"):
        choose(bundle, "tensorrt", "8.9")


def test_tensorrt_without_a_gpu_names_both_ways_out(bundle, no_gpu):
    with pytest.raises(UserError, match="TensorRT builds on the device it will run on") as caught:
        choose(bundle, "tensorrt")
    assert "--backend tensorrt-rtx" in caught.value.hint


def test_rtx_builds_ahead_of_time_for_what_is_named(bundle, no_gpu):
    assert choose(bundle, "tensorrt-rtx", "8.6", "8.9") == ("8.6", "8.9")
    with pytest.raises(UserError, match="so name what to build for"):
        choose(bundle, "tensorrt-rtx")


def test_rtx_on_a_gpu_it_cannot_build_for_says_so(bundle, orin):
    with pytest.raises(UserError, match=r"cannot build for compute capability 8\.7; it knows 8\.6, 8\.9"):
        choose(bundle, "tensorrt-rtx")


@pytest.mark.parametrize(
    "content", [None, b"lilicorr-plugin name=GreedyWalk namespace=lilicorr version=2 source=" + b"a" * 64 + b";"]
)
def test_a_plugin_that_is_missing_or_of_another_version_names_the_remedy(bundle, monkeypatch, tmp_path, content):
    library = tmp_path / "plugin.so"
    if content is not None:
        library.write_bytes(content)
    monkeypatch.setenv("LILICORR_PLUGIN", str(library))
    with pytest.raises(
        UserError, match="which is not a file" if content is None else "version 2, expected .* version 1"
    ) as caught:
        plugin_library(bundle, EngineOptions(backend="tensorrt"))
    assert "make plugin" in caught.value.hint
    assert "--no-plugin" in caught.value.hint
    assert plugin_library(bundle, EngineOptions(backend="tensorrt", plugin=False)) is None
    assert plugin_library(bundle, EngineOptions(backend="tensorrt-rtx")) is None  # it has no plugin layer


def test_the_plugin_is_described_with_its_hash(bundle, tmp_path):
    library = tmp_path / "plugin.so"
    library.write_bytes(b"plugin")
    engines = describe_engines(bundle, EngineOptions(), "10.3.0", ("8.7",), library)
    assert (engines.plugin.name, engines.plugin.namespace, engines.plugin.version) == ("GreedyWalk", "lilicorr", "1")
    planned = plan_engines(bundle, EngineOptions(), engines, tmp_path, None)
    assert {item.wanted["plugin"] for item in planned} == {engines.plugin.sha256}
    assert {(item.component, item.reason) for item in planned} == {
        ("scorer", "not built yet"),
        ("drafter", "not built yet"),
        ("target", "not built yet"),
    }
    sizes = [item.memory_bytes for item in planned]
    assert sizes == sorted(sizes)  # smallest first
    assert len(set(sizes)) == 3


def test_force_builds_everything_again_though_nothing_changed(bundle, tmp_path):
    described = describe_engines(bundle, EngineOptions(), "10.3.0", ("8.7",), None)
    engines = {}
    for item in plan_engines(bundle, EngineOptions(), described, tmp_path, None):
        (tmp_path / item.file).write_bytes(b"engine")
        sha256 = hashlib.sha256(b"engine").hexdigest()
        engines[item.component] = Engine(item.file, sha256, 6, item.profiles, item.wanted)
    built = dataclasses.replace(described, engines=engines)

    def reasons(options):
        return {item.reason for item in plan_engines(bundle, options, described, tmp_path, built)}

    assert reasons(EngineOptions()) == {None}
    assert reasons(EngineOptions(force=True)) == {"--force"}
    assert reasons(EngineOptions(workspace_mib=64)) == {"workspace was None, is 64"}
