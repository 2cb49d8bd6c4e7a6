"""Where the plugin library is looked for and what is refused, on stand-ins that carry only the build marker."""

from __future__ import annotations

import hashlib

import pytest

from lilicorr.plugins_trt import PluginError, Recorded, find, load, paths
from lilicorr.plugins_trt.loader import NAME, NAMESPACE, VARIABLE, VERSION

CURRENT = paths.source_hash(paths.DEVICE_SOURCES)


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """An empty package folder, an empty build folder, no variable."""
    for name in ("package", "build"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(paths, "PACKAGE", tmp_path / "package")
    monkeypatch.setattr(paths, "cache", lambda: tmp_path / "build")
    monkeypatch.delenv(VARIABLE, raising=False)
    return tmp_path


def library(path, *, name=NAME, version=VERSION, source=CURRENT):
    path.write_bytes(
        f"\x7fELF\0lilicorr-plugin name={name} namespace=lilicorr version={version} source={source};\0".encode()
    )
    return path


def recorded(path):
    return Recorded(path, hashlib.sha256(path.read_bytes()).hexdigest())


class Registry:
    """TensorRT's registry as far as `load` uses it; `takes` is whether a loaded library registers its creator."""

    def __init__(self, takes=True):
        self.takes, self.loaded = takes, []

    def load_library(self, path):
        self.loaded.append(path)

    def get_creator(self, name, version, namespace):
        known = self.takes and self.loaded and (name, version, namespace) == (NAME, VERSION, NAMESPACE)
        return object() if known else None


def test_the_order_of_places(folders, monkeypatch):
    build = library(folders / "build" / paths.LIBRARY)
    assert find() == build
    package = library(folders / "package" / paths.LIBRARY)
    assert find() == package
    named = library(folders / "named.so")
    monkeypatch.setenv(VARIABLE, str(named))
    assert find() == named
    bundled = library(folders / "bundled.so", source="0" * 64)  # its hash is the manifest's, whatever it was built from
    assert find(recorded(bundled)) == bundled


def test_a_recorded_file_that_is_not_there_leaves_the_other_places(folders):
    build = library(folders / "build" / paths.LIBRARY)
    assert find(Recorded(folders / "gone.so", "0" * 64)) == build


def test_none_found_lists_every_place_and_the_build_command(folders):
    with pytest.raises(PluginError) as error:
        find(Recorded(folders / "gone.so", "0" * 64))
    for place in ("gone.so", f"package/{paths.LIBRARY}", f"build/{paths.LIBRARY}", f"{VARIABLE}: not set"):
        assert place in error.value.what
    assert error.value.hint.startswith("cmake -S ")


def test_a_checkout_is_told_to_make(folders):
    (folders / "pyproject.toml").touch()
    with pytest.raises(PluginError, match="hint: make plugin"):
        find()


def test_a_variable_that_names_nothing_is_not_passed_over(folders, monkeypatch):
    library(folders / "build" / paths.LIBRARY)
    monkeypatch.setenv(VARIABLE, str(folders / "gone.so"))
    with pytest.raises(PluginError, match=r"LILICORR_PLUGIN names .*gone\.so"):
        find()


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({"version": "2"}, "version 2, expected lilicorr::GreedyWalk version 1"),
        ({"name": "Other"}, "is lilicorr::Other"),
        ({"source": "0" * 64}, "built from other sources: 0000000000000000…, expected"),
    ],
)
def test_a_wrong_library_is_an_error(folders, made, words):
    library(folders / "package" / paths.LIBRARY, **made)
    library(folders / "build" / paths.LIBRARY)
    with pytest.raises(PluginError, match=words):
        find()


def test_a_library_of_something_else(folders):
    (folders / "build" / paths.LIBRARY).write_bytes(b"\x7fELF something")
    with pytest.raises(PluginError, match="no build marker"):
        find()


def test_a_version_this_package_does_not_build(folders):
    library(folders / "build" / paths.LIBRARY)
    with pytest.raises(PluginError, match="version 1, expected lilicorr::GreedyWalk version 2"):
        find(version="2")


def test_a_changed_bundle_file(folders):
    bundled = library(folders / "bundled.so")
    record = recorded(bundled)
    bundled.write_bytes(bundled.read_bytes() + b"\0")
    with pytest.raises(PluginError, match="is not the file of the manifest: sha256"):
        find(record)


def test_loaded_once(folders):
    build, registry = library(folders / "build" / paths.LIBRARY), Registry()
    assert (load(registry), load(registry)) == (build, build)
    assert registry.loaded == [str(build)]


def test_a_registry_that_refuses(folders):
    library(folders / "build" / paths.LIBRARY)
    with pytest.raises(PluginError, match="TensorRT did not register lilicorr::GreedyWalk version 1"):
        load(Registry(takes=False))
