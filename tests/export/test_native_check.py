"""What TensorRT's parser makes of native attention, and of the forms that it drops in silence, in TensorRT-RTX's own parser."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest
from onnx import TensorProto, helper

from lilicorr.export.native_attention import ATTENTION, UPDATE
from lilicorr.export.native_check import require_native
from lilicorr.runtime.contract import TENSORRT_DOMAIN
from lilicorr.runtime.errors import UserError
from tests.plugins_trt.tools import wheel
from tests.runtime.fakes import tiny_manifest

HALF, INT32, INT64 = TensorProto.FLOAT16, TensorProto.INT32, TensorProto.INT64
ROWS, WIDTH = 64, 16
INPUTS = {
    "query": (HALF, ["N", 6, "T", WIDTH]),
    "keys": (HALF, ["N", 2, "T", WIDTH]),
    "values": (HALF, ["N", 2, "T", WIDTH]),
    "k_cache": (HALF, ["N", 2, ROWS, WIDTH]),
    "v_cache": (HALF, ["N", 2, ROWS, WIDTH]),
    "mask": (HALF, ["N", 1, "T", ROWS]),
    "starts": (INT32, ["N"]),
    "lengths": (INT32, ["N"]),
}


def native(*inputs, mask=HALF, layers=1):
    """`layers` attentions over one pair of updated caches, with the given inputs after query, keys and values."""
    kinds = INPUTS | {"mask": (mask, INPUTS["mask"][1])}
    nodes = [
        helper.make_node(UPDATE, [f"{k}_cache", rows, "starts"], [f"updated_{k}"], domain=TENSORRT_DOMAIN)
        for k, rows in (("k", "keys"), ("v", "values"))
    ]
    nodes += [
        helper.make_node(
            ATTENTION,
            ["query", "updated_k", "updated_v", *inputs],
            [f"mixed_{i}"],
            domain=TENSORRT_DOMAIN,
            name=f"a{i}",
        )
        for i in range(layers)
    ]
    outputs = {"updated_k": "k_cache", "updated_v": "v_cache"} | {f"mixed_{i}": "query" for i in range(layers)}
    return model(nodes, kinds, {name: kinds[like] for name, like in outputs.items()}, 18)


def standard(*inputs):
    """ONNX's own Attention with the given inputs after query, keys and values."""
    node = helper.make_node("Attention", ["query", "k_cache", "v_cache", *inputs], ["mixed"], name="a")
    kinds = {name: INPUTS[name] for name in ("query", "k_cache", "v_cache")} | {"lengths": (INT64, ["N"])}
    return model([node], kinds, {"mixed": INPUTS["query"]}, 24)


def model(nodes, inputs, outputs, opset):
    sides = [[helper.make_tensor_value_info(n, *kind) for n, kind in side.items()] for side in (inputs, outputs)]
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(TENSORRT_DOMAIN, 1)]
    return helper.make_model(helper.make_graph(nodes, "g", *sides), opset_imports=opsets, ir_version=10)


CASES = {
    "as exported": native("mask", "", "lengths", layers=2),
    "lengths as the eighth input": native("mask", "", "", "", "lengths"),
    "no lengths": native("mask"),
    "no mask": native("", "", "lengths"),
    "nonpad_kv_seqlen": standard("", "", "", "lengths"),
    "past and present": standard("", "k_cache", "v_cache"),
}

PROBE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import tensorrt_rtx_bindings as trt
from lilicorr.export.native_check import network_problems

logger = trt.Logger(trt.Logger.INTERNAL_ERROR)
found = {}
for name in sys.argv[2:]:
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse(open(name, "rb").read()):
        found[name] = {"parsed": False, "problems": [parser.get_error(0).desc()]}
        continue
    problems = network_problems(trt, network)
    layers = [str(network.get_layer(i).type).split(".")[-1] for i in range(network.num_layers)]
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM89, 0)
    for i in range(network.num_inputs):
        tensor = network.get_input(i)
        if -1 in tensor.shape:
            profile.set_shape(tensor.name, *([best if d == -1 else d for d in tensor.shape] for best in (1, 2, 4)))
    config.add_optimization_profile(profile)
    built = not problems and builder.build_serialized_network(network, config) is not None
    found[name] = {"parsed": True, "problems": problems, "layers": layers, "built": built}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def parsed(tmp_path_factory):
    """Case -> what the parser made of it, and whether an engine for SM89 was built where nothing is wrong."""
    if (folder := wheel("rtx-1.7.1.116")) is None:
        pytest.skip("no tensorrt-rtx: run `make tensorrt-wheels`")
    work = tmp_path_factory.mktemp("native")
    paths = {name: work / f"{index}.onnx" for index, name in enumerate(CASES)}
    for name, path in paths.items():
        path.write_bytes(CASES[name].SerializeToString())
    command = [sys.executable, "-c", PROBE, folder, *paths.values()]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return {name: found[str(path)] for name, path in paths.items()}


def test_the_exported_form_keeps_mask_and_lengths_and_builds(parsed):
    found = parsed["as exported"]
    assert (found["problems"], found["built"]) == ([], True)
    kept = [found["layers"].count(kind) for kind in ("KV_CACHE_UPDATE", "ATTENTION_INPUT", "ATTENTION_OUTPUT")]
    assert kept == [2, 2, 2]
    # neither decomposed nor scaled by the parser: the query is scaled in the graph, once
    assert set(found["layers"]) == {"CAST", "KV_CACHE_UPDATE", "ATTENTION_INPUT", "ATTENTION_OUTPUT"}


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("lengths as the eighth input", "the input `lengths` is ignored"),
        ("lengths as the eighth input", "its mask or its lengths are missing"),
        ("no lengths", "its mask or its lengths are missing"),
        ("no mask", "its mask or its lengths are missing"),
        ("nonpad_kv_seqlen", "the input `lengths` is ignored"),
    ],
)
def test_what_is_dropped_in_silence_is_found_after_parsing(parsed, name, problem):
    assert parsed[name]["parsed"]
    assert any(problem in line for line in parsed[name]["problems"]), parsed[name]["problems"]


def test_past_and_present_rows_do_not_parse(parsed):
    assert not parsed["past and present"]["parsed"]


def manifest(width=64, **changes):
    fake = tiny_manifest()
    target = dataclasses.replace(fake.target, cache=dataclasses.replace(fake.target.cache, head_dim=width))
    drafter = dataclasses.replace(fake.drafter, cache=dataclasses.replace(fake.drafter.cache, head_dim=64))
    return dataclasses.replace(fake, **{"attention": "native", "target": target, "drafter": drafter, **changes})


@pytest.mark.parametrize(
    ("backend", "version", "changes"),
    [
        ("tensorrt", "11.1.0.106", {}),
        ("tensorrt-rtx", "1.7.1.116", {"precision": "fp16"}),
        ("tensorrt", "10.3.0", {"attention": "two-part"}),
        ("tensorrt", "11.4.0", {"width": 8, "precision": "fp32"}),
    ],
)
def test_what_can_run_passes(backend, version, changes):
    require_native(manifest(**changes), backend, version)


@pytest.mark.parametrize("version", ["10.3.0", "10.16.1.11", "11.0.0.1"])
def test_a_tensorrt_without_lengths_is_refused_with_the_other_form_as_the_remedy(version):
    with pytest.raises(UserError, match=f"needs TensorRT 11.1 or newer, here is {version}") as caught:
        require_native(manifest(), "tensorrt", version)
    assert caught.value.hint == "lilicorr-export build … --attention two-part"


@pytest.mark.parametrize("width", [8, 100, 272])
def test_a_head_width_without_a_kernel_is_refused(width):
    with pytest.raises(
        UserError, match=f"no fp16 kernel for the target's head width {width}, expected a multiple of 8"
    ):
        require_native(manifest(width, precision="fp16"), "tensorrt-rtx", "1.7.1")
