"""Which backend runs a bundle here, and every refusal before an engine is read."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from click.testing import CliRunner

from lilicorr.plugins_trt import PluginError
from lilicorr.runtime import backends, load, trt_bindings
from lilicorr.runtime.cli import main
from lilicorr.runtime.engine_check import Here
from lilicorr.runtime.engine_choice import choose_engines
from lilicorr.runtime.engine_set import FILE_NAME, PluginBuild
from lilicorr.runtime.errors import EXIT_ENGINE, EXIT_USER, UserError
from tests.fixtures import edit_json
from tests.runtime.test_engine_set import example
from tests.runtime.trt_bundle import machine_with, write_engines

HERE = Here("tensorrt", "10.3.0", "8.7", "linux", "aarch64", None, None)


def described(bundle: Path, name: str, **changes) -> Path:
    folder = bundle / "engines" / name
    folder.mkdir(parents=True)
    (folder / FILE_NAME).write_text(example(**changes).to_json())
    return folder


def test_the_newest_engines_that_fit_are_chosen(tmp_path: Path) -> None:
    described(tmp_path, "old", created="2026-01-01")
    fits = described(tmp_path, "fits", created="2026-02-01")
    described(tmp_path, "other version", created="2026-03-01", tensorrt_version="11.1.0")
    described(tmp_path, "other backend", created="2026-04-01", backend="tensorrt-rtx")
    assert choose_engines(tmp_path, HERE) == fits


def test_engines_that_do_not_fit_are_chosen_to_say_why(tmp_path: Path) -> None:
    described(tmp_path, "old", created="2026-01-01", tensorrt_version="10.7.0")
    newest = described(tmp_path, "newest", created="2026-02-01", tensorrt_version="11.1.0")
    assert choose_engines(tmp_path, HERE) == newest


def test_no_engines_name_the_command(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no tensorrt-rtx engines in") as caught:
        choose_engines(tmp_path, dataclasses.replace(HERE, backend="tensorrt-rtx"))
    assert caught.value.hint == f"lilicorr-export engine {tmp_path} --backend tensorrt-rtx --compute-capability 8.7"
    assert caught.value.exit_code == EXIT_USER


def test_without_a_gpu_or_engines_onnx_runtime_runs(own_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_gpu() -> str:
        raise UserError("no NVIDIA driver")

    with monkeypatch.context() as patch:
        patch.setattr(backends, "compute_capability", no_gpu)
        with load(own_bundle, threads=1, verify=False) as session:
            assert session.backend == "ort"
        write_engines(own_bundle)
        with load(own_bundle, threads=1, verify=False) as session:
            assert session.backend == "ort"
        patch.setitem(trt_bindings.MODULES, "tensorrt", ("no_such_module",))
        with pytest.raises(UserError, match="`tensorrt` cannot be imported here: it is not installed") as caught:
            load(own_bundle, backend="tensorrt", verify=False)
        assert caught.value.hint == trt_bindings.install_command("tensorrt")


def test_with_a_gpu_the_engines_run(own_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine_with(monkeypatch, write_engines(own_bundle, "one", backend="tensorrt-rtx"))
    with load(own_bundle, verify=False) as session:
        assert session.backend == "tensorrt-rtx"
    machine_with(monkeypatch, write_engines(own_bundle, "two"))
    with load(own_bundle, verify=False) as session:
        assert session.backend == "tensorrt"
    elsewhere = (own_bundle / "engines" / "one").rename(tmp_path / "elsewhere")
    with load(own_bundle, engines=elsewhere, verify=False) as session:
        assert session.backend == "tensorrt-rtx"
    with load(own_bundle, backend="ort", threads=1, verify=False) as session:
        assert session.backend == "ort"
    with pytest.raises(UserError, match="threads are ONNX Runtime's, tensorrt has none"):
        load(own_bundle, threads=1, verify=False)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tensorrt_version": "10.7.0"}, "TensorRT version: 10.7.0, here 10.3.0"),
        ({"compute_capabilities": ("8.7",)}, "compute capability: 8.7, here 8.9"),
        ({"bundle_sha256": "00" * 32}, "were built from another bundle"),
    ],
)
def test_engines_that_do_not_fit(own_bundle: Path, monkeypatch: pytest.MonkeyPatch, changes, said: str) -> None:
    machine = machine_with(monkeypatch, write_engines(own_bundle, **changes))
    with pytest.raises(UserError, match=said) as caught:
        load(own_bundle, verify=False)
    assert caught.value.exit_code == EXIT_ENGINE
    assert machine.driver.live == {}  # no GPU memory, no engine
    result = CliRunner().invoke(main, ["generate", str(own_bundle), "Why?", "--no-verify", "--backend", "tensorrt"])
    assert result.exit_code == EXIT_ENGINE
    assert said in result.stderr


def test_a_truncated_engine(own_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine_with(monkeypatch, write_engines(own_bundle))
    path = own_bundle / "engines" / "one" / "target.engine"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"`target\.engine` has \d+ bytes, expected \d+") as caught:
        load(own_bundle, verify=False)
    assert caught.value.exit_code == EXIT_ENGINE


PLUGIN = PluginBuild("GreedyWalk", "lilicorr", "1", "ef" * 32)


def test_the_plugin_is_loaded_before_an_engine_is_read(
    own_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "plugin.so"
    library.write_bytes(b"library")
    sha256 = "aa9ce1a3b8b6ea2f7f0a5f3a7d2b4b7e"
    machine = machine_with(monkeypatch, write_engines(own_bundle, plugin=dataclasses.replace(PLUGIN, sha256=sha256)))
    asked = []

    def loading(registry, *, version: str) -> Path:
        asked.append((registry, version))
        return library

    monkeypatch.setattr("lilicorr.plugins_trt.load", loading)
    with pytest.raises(UserError, match=f"plugin sha256: {sha256[:16]}, here ") as caught:
        load(own_bundle, verify=False)
    assert caught.value.exit_code == EXIT_ENGINE
    assert asked == [(machine.tensorrt.registry, "1")]
    edit_json(
        own_bundle / "engines" / "one" / FILE_NAME,
        {"plugin": dataclasses.asdict(PLUGIN) | {"sha256": backends.file_sha256(library)}},
    )
    with load(own_bundle, verify=False) as session:
        assert session.backend == "tensorrt"


def test_a_missing_plugin_is_the_loaders_message(own_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine_with(monkeypatch, write_engines(own_bundle, plugin=PLUGIN))

    def missing(registry, *, version: str) -> Path:
        raise PluginError("the TensorRT plugin was not found", hint="make plugin")

    monkeypatch.setattr("lilicorr.plugins_trt.load", missing)
    with pytest.raises(UserError, match="plugin was not found") as caught:
        load(own_bundle, verify=False)
    assert (caught.value.hint, caught.value.exit_code) == ("make plugin", EXIT_ENGINE)
