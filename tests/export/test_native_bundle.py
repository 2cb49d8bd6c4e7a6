"""A whole bundle with native attention: it says so, climbs the parity ladder, answers like the other form, and compiles."""

from __future__ import annotations

import dataclasses
import shutil

import pytest

from lilicorr.export.backend_parity import compare_engines
from lilicorr.export.bundle import build_bundle
from lilicorr.export.options import BuildOptions
from lilicorr.export.parity import CheckOptions, check_bundle
from lilicorr.export.progress import Progress
from lilicorr.runtime.bundle import open_bundle
from lilicorr.runtime.contract import native_rows
from lilicorr.runtime.engine_set import read_engine_set
from lilicorr.runtime.errors import UserError
from lilicorr.runtime.session import load
from tests.export.test_engine import engines_of, environment, run
from tests.fixtures import edit_json
from tests.runtime.trt_bundle import machine_with, run_with_plain_steps, write_engines

__all__ = ["environment"]

BLOCK = 5  # whole: chosen ones would depend on this machine
PROMPTS = ["the quick brown fox", "the user asks " * 12, "jumps over"]


@pytest.fixture(scope="module")
def native_bundle(tiny_target, tiny_drafter, tmp_path_factory):
    out = tmp_path_factory.mktemp("native") / "bundle"
    build_bundle(tiny_target, tiny_drafter, out, BuildOptions(attention="native"), Progress(None))
    return out


def test_the_manifest_records_the_form(native_bundle, tiny_bundle):
    manifest = open_bundle(native_bundle).manifest
    assert (manifest.attention, open_bundle(tiny_bundle).manifest.attention) == ("native", "two-part")
    assert ("--attention", "native") in zip(manifest.command, manifest.command[1:], strict=False)
    inputs = {tensor.name: tensor.shape for tensor in manifest.components["target"].inputs}
    assert inputs["k_cache_0"] == ("N", 2, native_rows(manifest), 8)


@pytest.mark.slow
def test_it_climbs_the_parity_ladder(native_bundle, tiny_target, tiny_drafter, tmp_path):
    own = shutil.copytree(native_bundle, tmp_path / "bundle")
    options = CheckOptions(tiny_target, tiny_drafter, limit=2, max_new_tokens=8, threads=1)
    assert check_bundle(own, options, Progress(None))["passed"]


def test_answers_are_those_of_two_part_attention(native_bundle, tiny_bundle):
    """Alone, as ragged lanes, after a longer answer in the same caches, and until the context is full."""
    answers = []
    for folder in (tiny_bundle, native_bundle):
        with load(folder, threads=1) as session:
            alone = [session.generate(prompt, max_new_tokens=40, block_size=BLOCK) for prompt in PROMPTS]
            together = session.generate_batch(PROMPTS, max_new_tokens=40, block_size=BLOCK)
            full = session.generate("the lazy dog " * 40, max_new_tokens=10_000, block_size=BLOCK)
            assert full.finish_reason in ("context", "stop")
            answers.append([result.token_ids for result in (*alone, *together, full)])
    assert answers[0] == answers[1]


def test_rows_of_plain_steps_reach_the_drafter(native_bundle, tiny_bundle, monkeypatch):
    found = []
    for folder in (tiny_bundle, native_bundle):
        with load(folder, threads=1) as session:
            found.append(run_with_plain_steps(session, PROMPTS, monkeypatch))
    answers, drafts = found[0]
    assert any(0 in offered for _, offered in answers), "the case needs plain steps"
    assert len(drafts) > 3
    assert found[0] == found[1]


def test_the_tensorrt_backend_gives_every_cache_one_address(native_bundle, tmp_path, monkeypatch):
    """On the simulated GPU, with lanes that end one by one; the answers are those of ONNX Runtime."""
    own = shutil.copytree(native_bundle, tmp_path / "bundle")
    with load(own, backend="ort", threads=1) as session:
        wanted = [
            result.token_ids
            for result in session.generate_batch(PROMPTS, max_new_tokens=24, block_size=BLOCK, stop=["e"])
        ]
    machine = machine_with(monkeypatch, write_engines(own))
    with load(own) as session:
        assert session.backend == "tensorrt"
        found = [
            result.token_ids
            for result in session.generate_batch(PROMPTS, max_new_tokens=24, block_size=BLOCK, stop=["e"])
        ]
    assert found == wanted
    pairs = [
        (context.addresses[name.removeprefix("updated_")], address)
        for context in machine.tensorrt.contexts
        for name, address in context.addresses.items()
        if name.startswith("updated_")
    ]
    assert pairs
    assert all(read == written for read, written in pairs)


@pytest.mark.parametrize("attention", ["paged", "two-part"])
def test_a_form_that_the_graphs_do_not_have_is_refused(native_bundle, tmp_path, attention):
    own = shutil.copytree(native_bundle, tmp_path / "bundle")
    edit_json(own / "manifest.json", {"attention": attention})
    message = (
        "attention is 'paged', expected one of two-part, native" if attention == "paged" else "no output `new_k_0`"
    )
    with pytest.raises(UserError, match=message):
        open_bundle(own)


def test_a_manifest_without_the_form_is_refused(native_bundle, tmp_path):
    own = shutil.copytree(native_bundle, tmp_path / "bundle")
    edit_json(own / "manifest.json", {"attention": None})
    with pytest.raises(UserError, match="attention: missing"):
        open_bundle(own)


def test_engines_that_write_in_place_are_not_compared_by_polygraphy(native_bundle, tmp_path):
    with pytest.raises(UserError, match="native engines write their caches in place") as caught:
        compare_engines(native_bundle, tmp_path, None, Progress(None))
    assert caught.value.hint.startswith("compare the answers")


@pytest.mark.slow
def test_it_compiles_and_the_engines_say_the_form(native_bundle, environment, tmp_path):
    own = shutil.copytree(native_bundle, tmp_path / "bundle")
    done = run(own, environment, ahead=("--backend", "tensorrt-rtx", "--compute-capability", "8.9"))
    assert done.returncode == 0, done.stderr
    engines = read_engine_set(engines_of(own))
    assert engines.attention == "native"
    rows = native_rows(open_bundle(own).manifest)
    shapes = engines.engines["target"].profiles[0].shapes["k_cache_0"]
    assert {size[2] for size in dataclasses.astuple(shapes)} == {rows}
