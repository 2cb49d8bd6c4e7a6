"""Texts of the engines on the simulated GPU: identical where the engines are right, and a failure where one is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.runtime.trt_bundle import machine_with, write_engines

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import device_texts

    return device_texts


@pytest.fixture
def engines(own_bundle, monkeypatch):
    """The folder of engines that a simulated GPU runs."""
    machine_with(monkeypatch, write_engines(own_bundle))
    return own_bundle / "engines" / "one"


def run(script, bundle, engines):
    options = [str(bundle), "--engines", str(engines), "--limit", "2", "--max-new-tokens", "12"]
    done = CliRunner().invoke(script.main, options)
    (report,) = (line for line in done.stdout.splitlines() if line.startswith("{"))
    return done, json.loads(report)


def test_the_same_graphs_give_the_same_texts(script, own_bundle, engines):
    done, report = run(script, own_bundle, engines)
    assert done.exit_code == 0, done.output
    same = {"identical": 2, "tie": 0, "different": 0, "parted": []}
    assert (report["speculative_against_plain"], report["engines_against_onnxruntime"]) == (same, same)
    assert (report["backend"], report["attention"], report["tokens"]) == ("tensorrt", "two-part", 24)


def test_a_speculative_answer_that_is_not_the_plain_one_fails(script, own_bundle, engines, monkeypatch):
    """And one that only ONNX Runtime has otherwise is reported."""
    honest = script.answers

    def wrong(session, *arguments, speculative):
        found = honest(session, *arguments, speculative=speculative)
        return [(*ids[:5], ids[5] + 1, *ids[6:]) for ids in found] if broken(session.backend, speculative) else found

    monkeypatch.setattr(script, "answers", wrong)
    broken = lambda backend, speculative: speculative  # noqa: E731
    done, report = run(script, own_bundle, engines)
    assert done.exit_code == 1
    assert report["speculative_against_plain"]["different"] == 2
    assert [part["position"] for part in report["speculative_against_plain"]["parted"]] == [5, 5]
    broken = lambda backend, speculative: backend == "ort"  # noqa: E731
    done, report = run(script, own_bundle, engines)
    assert done.exit_code == 0
    assert report["engines_against_onnxruntime"]["different"] == 2


def test_speculative_answers_are_of_whole_blocks(script, own_bundle, engines, monkeypatch):
    asked = []
    honest = script.Session.generate
    monkeypatch.setattr(
        script.Session, "generate", lambda self, prompt, **o: asked.append(o) or honest(self, prompt, **o)
    )
    run(script, own_bundle, engines)
    assert {o["block_size"] for o in asked if o["speculative"]} == {5}
