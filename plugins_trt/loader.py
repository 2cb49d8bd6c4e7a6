"""Finds the plugin library, checks that it is the right one, and loads it into a TensorRT plugin registry. Builds nothing.

Where it may be, first come first served: the file a bundle's manifest records, `LILICORR_PLUGIN`, this package's folder, and the
folder `make plugin` builds into. A file that is there but wrong is an error; the next place is not tried.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lilicorr.plugins_trt import paths
from lilicorr.plugins_trt.errors import PluginError

NAME, NAMESPACE, VERSION = "GreedyWalk", "lilicorr", "1"
VARIABLE = "LILICORR_PLUGIN"
MARKER = re.compile(rb"lilicorr-plugin name=(\w+) namespace=(\w+) version=(\w+) source=([0-9a-f]{64});")


@dataclass(frozen=True)
class Recorded:
    """The library as a bundle's manifest names it."""

    path: Path
    sha256: str


class Registry(Protocol):
    """What is used of `tensorrt.IPluginRegistry` (full, lean or RTX)."""

    def load_library(self, path: str) -> Any: ...

    def get_creator(self, name: str, version: str, namespace: str) -> Any: ...


def load(registry: Registry, recorded: Recorded | None = None, *, version: str = VERSION) -> Path:
    """Find, check and load the library; does not load a second time when the creator is already there.

    Args:
        registry: `tensorrt.get_plugin_registry()` or `runtime.get_plugin_registry()`.
        recorded: The bundle's own copy, if it has one.
        version: Plugin version the engine or graph asks for.

    Returns:
        The library's path.

    Raises:
        PluginError: see `find`; or the registry did not take the library.
    """
    path = find(recorded, version=version)
    if registry.get_creator(NAME, version, NAMESPACE) is None:
        registry.load_library(str(path))
        if registry.get_creator(NAME, version, NAMESPACE) is None:
            raise PluginError(
                f"TensorRT did not register {NAMESPACE}::{NAME} version {version} from `{path}`"
                " (built for another processor or TensorRT?)",
                hint=build_command(),
            )
    return path


def find(recorded: Recorded | None = None, *, version: str = VERSION) -> Path:
    """The first library that exists, checked: its version, and its hash (the manifest's, or that of this package's sources).

    Raises:
        PluginError: there is none (all paths tried are listed), or it is another version, another file or a stale build.
    """
    for origin, path in _places(recorded):
        if path.is_file():
            _check(path, recorded if origin == "manifest" else None, version)
            return path
        if origin == VARIABLE:
            raise PluginError(f"{VARIABLE} names `{path}`, which is not a file", hint=build_command())
    tried = [f"  {origin}: `{path}`" for origin, path in _places(recorded)]
    if VARIABLE not in os.environ:
        tried.append(f"  {VARIABLE}: not set")
    raise PluginError("the TensorRT plugin was not found; tried\n" + "\n".join(tried), hint=build_command())


def build_command() -> str:
    if paths.checkout() is not None:
        return "make plugin"
    out = paths.cache()
    return f"cmake -S {paths.PACKAGE} -B {out}/cmake -DLILICORR_OUTPUT_DIR={out} && cmake --build {out}/cmake"


def _places(recorded: Recorded | None) -> list[tuple[str, Path]]:
    places = [("manifest", recorded.path)] if recorded is not None else []
    if (named := os.environ.get(VARIABLE)) is not None:
        places.append((VARIABLE, Path(named)))
    return [*places, ("package", paths.PACKAGE / paths.LIBRARY), ("build", paths.cache() / paths.LIBRARY)]


def _check(path: Path, recorded: Recorded | None, version: str) -> None:
    content = path.read_bytes()
    if recorded is not None and (found := hashlib.sha256(content).hexdigest()) != recorded.sha256:
        raise PluginError(
            f"`{path}` is not the file of the manifest: sha256 {found}, expected {recorded.sha256}",
            hint="export the bundle again",
        )
    marker = MARKER.search(content)
    if marker is None:
        raise PluginError(
            f"`{path}` is not a {NAMESPACE}::{NAME} plugin: it carries no build marker", hint=build_command()
        )
    name, namespace, built_version, source = (group.decode() for group in marker.groups())
    if (name, namespace, built_version) != (NAME, NAMESPACE, version):
        raise PluginError(
            f"`{path}` is {namespace}::{name} version {built_version}, expected {NAMESPACE}::{NAME} version {version}",
            hint=build_command(),
        )
    if recorded is None and source != (expected := paths.source_hash(paths.DEVICE_SOURCES)):
        raise PluginError(
            f"`{path}` was built from other sources: {source[:16]}…, expected {expected[:16]}…", hint=build_command()
        )
