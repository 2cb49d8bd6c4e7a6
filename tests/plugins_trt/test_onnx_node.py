"""The exported node reaches the plugin's creator through NVIDIA's ONNX parser: op type, version, namespace, attributes.

A recording creator under the plugin's name stands in for it: TensorRT-RTX parses like TensorRT but has no plugin layer to make.
"""

from __future__ import annotations

import json
import subprocess
import sys

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from lilicorr.export.walk import ATTRIBUTES, DOMAIN, NAME, add_walk_function
from lilicorr.plugins_trt.loader import NAME as PLUGIN
from lilicorr.plugins_trt.loader import NAMESPACE, VERSION
from tests.plugins_trt.tools import wheel

PROBE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import tensorrt_rtx_bindings as trt

name, version, namespace, model = sys.argv[2:]
created = []

class Recorder(trt.IPluginCreatorV3One):
    def __init__(self):
        super().__init__()
        self.name, self.plugin_version, self.plugin_namespace = name, version, namespace
        field = trt.PluginField("sampled", np.array([0], np.int32), trt.PluginFieldType.INT32)
        self.field_names = trt.PluginFieldCollection([field])

    def create_plugin(self, layer, fields, phase):
        created.append([layer, [[field.name, str(field.type), field.data.tolist()] for field in fields]])
        return None

recorder = Recorder()
trt.get_plugin_registry().register_creator(recorder, namespace)
logger = trt.Logger(trt.Logger.ERROR)
builder = trt.Builder(logger)  # kept: the network and the parser do not outlive it
network = builder.create_network(0)
parser = trt.OnnxParser(network, logger)
parser.parse(open(model, "rb").read(), model)  # the path is where external weights are looked for
print(json.dumps([created, [parser.get_error(i).desc() for i in range(parser.num_errors)]]))
"""


def model_of(sampled, domain=DOMAIN, **overrides):
    """One node on N x 15 slots x 8 candidates, with the exporter's own attributes, as the plugin variant is saved: no function."""
    shapes = {"start": ["N", 8], "pair": ["N", 14, 8, 8]}
    shapes |= {"temperature": ["N"], "uniforms": ["N", 15]} if sampled else {}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    outputs = [helper.make_tensor_value_info("path", TensorProto.INT32, ["N", 15])]
    if sampled:
        outputs.append(helper.make_tensor_value_info("q", TensorProto.FLOAT, ["N", 15, 8]))
    attributes = ATTRIBUTES | ({"sampled": 1} if sampled else {}) | overrides
    names = [value.name for value in inputs], [value.name for value in outputs]
    node = helper.make_node(NAME, *names, domain=domain, name="walk", **attributes)
    graph = helper.make_graph([node], "scorer", inputs, outputs)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def parse(model, folder, name=PLUGIN):
    """(what the creator registered under `name` was given per node, the parser's errors); weights are in `folder`."""
    if (bindings := wheel("rtx-1.7.1.116")) is None:
        pytest.skip("no tensorrt-rtx: run `make tensorrt-wheels`")
    path = folder / "plugin_variant.onnx"
    path.write_bytes(model.SerializeToString())
    command = [sys.executable, "-c", PROBE, bindings, name, VERSION, NAMESPACE, path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("sampled", "fields"), [(False, []), (True, [["sampled", "PluginFieldType.INT32", [1]]])], ids=["greedy", "sampled"]
)
def test_the_node_reaches_the_creator(sampled, fields, tmp_path):
    created, errors = parse(model_of(sampled), tmp_path)
    assert created == [["walk", fields]]
    assert len(errors) == 1  # the recorder made no plugin
    assert "Could not create the plugin" in errors[0]


def test_the_exported_scorer_reaches_the_creator(own_bundle):
    model = onnx.load(own_bundle / "scorer.onnx", load_external_data=False)
    (node,) = [node for node in model.graph.node if node.domain == DOMAIN]
    assert [(function.domain, function.name) for function in model.functions] == [(DOMAIN, NAME)]
    del model.functions[:]
    created, errors = parse(model, own_bundle)
    assert created == [[node.name, []]]
    assert "Could not create the plugin" in errors[0]


@pytest.mark.parametrize(
    "wrong", [{"plugin_version": "2"}, {"plugin_namespace": "other", "domain": "other"}], ids=["version", "namespace"]
)
def test_another_version_or_namespace_does_not(wrong, tmp_path):
    """The domain is changed with the namespace: the parser tries it when the namespace holds no such plugin."""
    created, errors = parse(model_of(sampled=False, **wrong), tmp_path)
    assert created == []
    assert "Plugin not found" in errors[0]


@pytest.mark.parametrize("registered", [True, False])
def test_the_model_local_function_steps_in_only_where_the_plugin_is_missing(registered, tmp_path):
    """With `plugin_namespace` on the node this parser prefers a registered plugin to the function; without it, the function."""
    model = ir.from_proto(model_of(sampled=False))
    add_walk_function(model, slots=15, opset=18)
    created, errors = parse(ir.to_proto(model), tmp_path, name=PLUGIN if registered else "Other")
    assert created == ([["walk", []]] if registered else [])
    assert len(errors) == len(created)  # the function parses without an error
