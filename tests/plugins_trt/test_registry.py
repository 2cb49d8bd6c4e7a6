"""The built library in TensorRT's own plugin registry, several versions of it: found, created with fields, created again from them.

In a process of its own: a registry lives as long as its process, and an NVIDIA library that aborts must not end the tests.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.plugins_trt.tools import LEAN_VERSIONS, wheel

PROBE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import tensorrt_lean_bindings as trt
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


@pytest.mark.parametrize("version", LEAN_VERSIONS)
def test_registered_and_created(library, version):
    if (folder := wheel(f"lean-{version}")) is None:
        pytest.skip(f"no tensorrt-lean {version}: run `make tensorrt-wheels`")
    done = subprocess.run([sys.executable, "-c", PROBE, folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "version": version,
        "before": False,
        "fields": [["sampled", "PluginFieldType.INT32"]],
        "build": [1, 1, 2, None],
        "runtime": [1, 2],
    }
    assert "attribute sampled is 2, expected 0 or 1" in done.stderr
