"""The built library in TensorRT's own plugin registry, several versions of it: found, created with fields, created again from them.

TensorRT's bindings call it through the class layouts they were compiled with, so each version of them proves its own ABI. Those
of 10.3, of which no registry can be installed, do so over the registry of a newer 10, and only as far as creating. Serialising
cannot be called from Python: harness.cpp does that (test_library.py). All in processes of their own: a registry lives as long
as its process, and an NVIDIA library that aborts must not end the tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.plugins_trt.stubs import write_stubs
from tests.plugins_trt.tools import LEAN_VERSIONS, wheel

PROBE = """
import importlib, json, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
trt = importlib.import_module(sys.argv[2])
from lilicorr.plugins_trt import load

registry = trt.get_plugin_registry()
before = registry.get_creator("GreedyWalk", "1", "lilicorr")
load(registry)
load(registry)
creator = registry.get_creator("GreedyWalk", "1", "lilicorr")

def outputs(fields, phase):
    plugin = creator.create_plugin("walk", trt.PluginFieldCollection(fields), phase)
    if plugin is None:
        return None
    core = plugin.get_capability_interface(trt.PluginCapabilityType.CORE)
    if core is None and trt.__version__.startswith("10.3."):  # it shows Python no interface of a plugin in C++
        return True
    assert (core.plugin_name, core.plugin_version, core.plugin_namespace) == ("GreedyWalk", "1", "lilicorr")
    assert plugin.get_capability_interface(trt.PluginCapabilityType.RUNTIME) is not None
    return plugin.get_capability_interface(trt.PluginCapabilityType.BUILD).num_outputs

def sampled(value):
    return [trt.PluginField("sampled", np.array([value], np.int32), trt.PluginFieldType.INT32)]

build, runtime = trt.TensorRTPhase.BUILD, trt.TensorRTPhase.RUNTIME
print(json.dumps({
    "version": trt.__version__,
    "before": before is not None,
    "fields": [(field.name, str(field.type)) for field in creator.field_names],
    "build": [outputs([], build), outputs(sampled(0), build), outputs(sampled(1), build), outputs(sampled(2), build)],
    "runtime": [outputs(sampled(0), runtime), outputs(sampled(1), runtime)],
}))
"""


def probe(folder, module, outputs, environment=None):
    """Version of the bindings `module` in `folder`; `outputs` are those of a greedy and of a sampled plugin."""
    command = [sys.executable, "-c", PROBE, folder, module]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | (environment or {}))
    assert done.returncode == 0, done.stderr
    assert "attribute sampled is 2, expected 0 or 1" in done.stderr
    found = json.loads(done.stdout)
    version = found.pop("version")
    assert found == {
        "before": False,
        "fields": [["sampled", "PluginFieldType.INT32"]],
        "build": [outputs[0], *outputs, None],
        "runtime": outputs,
    }
    return version


def installed(name):
    if (folder := wheel(name)) is None:
        pytest.skip(f"no {name}: run `make tensorrt-wheels`")
    return folder


@pytest.mark.parametrize("version", LEAN_VERSIONS)
def test_registered_and_created(library, version):
    assert probe(installed(f"lean-{version}"), "tensorrt_lean_bindings", [1, 2]) == version


def test_bindings_of_the_oldest_version_create_it(library, tmp_path):
    (registry,) = installed("lean-10.15.1.29").glob("tensorrt_lean_libs/libnvinfer_lean.so.*")
    environment = {"LD_LIBRARY_PATH": str(write_stubs(tmp_path)), "LILICORR_TEST_REGISTRY": str(registry)}
    assert probe(installed("bindings-10.3.0"), "tensorrt_bindings", [True, True], environment) == "10.3.0"
