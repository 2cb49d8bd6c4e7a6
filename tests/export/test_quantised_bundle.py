"""Quantised bundles from end to end on tiny models: built, checked up the whole ladder, compiled ahead of time."""

from __future__ import annotations

import dataclasses

import pytest

from lilicorr.export.bundle import build_bundle
from lilicorr.export.options import BuildOptions
from lilicorr.export.parity import CheckOptions, check_bundle
from lilicorr.export.progress import Progress
from lilicorr.runtime.bundle import open_bundle
from lilicorr.runtime.errors import UserError
from lilicorr.runtime.loop import GreedyLoop
from lilicorr.runtime.manifest import Quantisation, read_manifest
from lilicorr.runtime.ort import OrtBackend
from lilicorr.runtime.steps import Steps
from tests.export.packed import write_packed_target
from tests.export.test_engine import engines_of, environment, run

__all__ = ["environment"]
CHECK = CheckOptions(limit=2, max_new_tokens=9, threads=1)


@pytest.fixture(scope="module")
def int4(tiny_target, tiny_drafter, tmp_path_factory):
    out = tmp_path_factory.mktemp("quantised") / "int4"
    build_bundle(tiny_target, tiny_drafter, out, BuildOptions(weights="int4", weights_block=32), Progress(None))
    return out


def test_the_ladder_holds_for_round_to_nearest(int4):
    assert read_manifest(int4).target.quantisation == Quantisation(4, 32, "round-to-nearest")
    report = check_bundle(int4, CHECK, Progress(None))
    assert report["passed"], report["summary"]


def test_the_ladder_holds_for_a_pre_quantised_target(tiny_target, tiny_drafter, tmp_path):
    write_packed_target(tmp_path / "awq", tiny_target, "awq")
    out = tmp_path / "bundle"
    build_bundle(tmp_path / "awq", tiny_drafter, out, BuildOptions(), Progress(None))
    assert read_manifest(out).target.quantisation == Quantisation(8, 32, "awq")
    report = check_bundle(out, CHECK, Progress(None))
    assert report["passed"], report["summary"]
    with pytest.raises(UserError, match=r"target\.quantisation"):
        check_bundle(out, dataclasses.replace(CHECK, target=tiny_target), Progress(None))


def test_a_token_alone_gets_the_logits_it_gets_in_a_block(int4):
    """What makes speculation lossless: the step of one row computes what the step of five does."""
    bundle = open_bundle(int4)
    with OrtBackend(bundle, threads=1) as backend:
        steps = Steps(backend, bundle.manifest)
        loop = GreedyLoop(steps, bundle.manifest)
        plain, speculative = (
            [t for turn in loop.run([[5, 9, 20, 33]], 40, block=block) for t in turn.lanes[0].tokens]
            for block in (1, steps.block_size)
        )
    assert plain == speculative
    assert len(set(plain)) > 1


def test_engines_compile_from_the_same_file(int4, environment):
    done = run(int4, environment)
    assert done.returncode == 0, done.stderr
    kinds = [line.split("\t")[1] for line in (engines_of(int4) / "target.layers.tsv").read_text().splitlines()]
    assert kinds.count("DequantizeLinear") >= 4 * 4
