"""The whole loop over engines: plans, device memory, commits, buckets, graphs and one wait a round, on a simulated GPU.

The simulation runs the bundle's own graphs, so every answer must be that of the ONNX Runtime backend, token for token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lilicorr.runtime import Session, load
from lilicorr.runtime.errors import EXIT_ENGINE, UserError
from tests.runtime.simulated_tensorrt import CudaGraphStrategy
from tests.runtime.trt_bundle import Machine, machine_with, run_with_plain_steps, write_engines

SHORT = ["the quick brown fox", "user", "over the lazy dog and the user asks why " * 3]
LONG = "the user asks why the dog answers and over the fox " * 12  # beyond the first bucket, in several chunks
BLOCK = 5  # whole


@pytest.fixture(scope="module")
def reference(tiny_bundle: Path) -> Iterator[Session]:
    with load(tiny_bundle, backend="ort", threads=1) as session:
        yield session


Opener = Callable[..., tuple[Session, Machine]]


@pytest.fixture
def opened(own_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opener]:
    """Open the bundle on the simulated GPU: `opened(**what engine.json says)`; closed, and found empty, after the test."""
    sessions: list[tuple[Session, Machine]] = []

    def open_it(*, capturable: bool = True, **changes: Any) -> tuple[Session, Machine]:
        machine = machine_with(monkeypatch, write_engines(own_bundle, **changes), capturable=capturable)
        sessions.append((load(own_bundle), machine))
        return sessions[-1]

    yield open_it
    for session, machine in sessions:
        session.close()
        assert machine.driver.released
        assert machine.driver.live == machine.driver.graphs == machine.driver.events == {}


def answers(
    session: Session, prompts: list[str], most: int = 40, **options: Any
) -> list[tuple[tuple[int, ...], list[int]]]:
    """Tokens, and accepted drafts of every round: the tokens alone would be right with any drafts.

    Whole blocks, unless `options` say otherwise: chosen ones would depend on this machine.
    """
    results = session.generate_batch(prompts, max_new_tokens=most, **{"block_size": BLOCK} | options)
    return [(result.token_ids, result.stats.accepted) for result in results]


@pytest.mark.parametrize("options", [{}, {"use_head": False}, {"speculative": False}])
def test_same_answers_as_onnx_runtime(opened: Opener, reference: Session, options: dict) -> None:
    session, _ = opened()
    assert session.backend == "tensorrt"
    for prompt in SHORT:
        assert answers(session, [prompt], **options) == answers(reference, [prompt], **options)


def test_ragged_batches_lose_their_lanes_one_by_one(opened: Opener, reference: Session) -> None:
    session, _ = opened()
    batch = [*SHORT, "answers the fox"]
    stops = {"stop": ["e", "q"]}
    assert answers(session, batch, **stops) == answers(reference, batch, **stops)
    assert answers(session, batch[:3]) == answers(reference, batch[:3])


@pytest.mark.parametrize("prompts", [SHORT[2:], SHORT])
def test_rows_of_plain_steps_reach_the_drafter(
    opened: Opener, reference: Session, monkeypatch: pytest.MonkeyPatch, prompts: list[str]
) -> None:
    session, machine = opened()
    found, wanted = (run_with_plain_steps(each, prompts, monkeypatch) for each in (session, reference))
    assert len(wanted[1]) > 3
    assert found == wanted
    handed = {shapes["features"][1] for graph, shapes in machine.tensorrt.runs if graph == "drafter"}
    assert handed & {2, 4, 8, 16, 32}, "the case needs rows of several calls"


def test_caches_grow_from_bucket_to_bucket(opened: Opener, reference: Session) -> None:
    session, machine = opened()
    length = len(session.encode(LONG))
    assert 200 < length < 256  # of one lane in a batch; it grows while the other lane does not
    assert answers(session, [LONG, "user"], 60) == answers(reference, [LONG, "user"], 60)
    capacities = {shapes["k_cache_0"][2] for graph, shapes in machine.tensorrt.runs if graph == "target"}
    assert capacities == {256, 512}


def test_chunks_of_other_widths_share_a_context(opened: Opener, reference: Session) -> None:
    session, machine = opened()
    for prompt in (SHORT[2], LONG, SHORT[2], LONG):
        assert answers(session, [prompt], 5) == answers(reference, [prompt], 5)
    prefill = [c for c in machine.tensorrt.contexts if c.engine.profiles[c.profile].name == "prefill"]
    assert sorted(context.engine.name for context in prefill) == ["drafter", "target"]


def test_conversation_reuses_its_prefix(opened: Opener, reference: Session) -> None:
    session, _ = opened()
    messages = [{"role": "user", "content": "the fox"}]
    for _ in range(3):
        *_, last = session.stream(messages, max_new_tokens=12, block_size=BLOCK, reuse_prefix=True)
        alone = reference.generate(messages, max_new_tokens=12, block_size=BLOCK)
        assert (last.result.token_ids, last.result.stats.accepted) == (alone.token_ids, alone.stats.accepted)
        messages += [{"role": "assistant", "content": last.result.text}, {"role": "user", "content": "and the dog"}]


def test_logits_are_read_when_asked_for(opened: Opener, reference: Session) -> None:
    session, _ = opened()
    prompt = session.encode(SHORT[0])
    answer = reference.generate(SHORT[0], max_new_tokens=5).token_ids
    first, second, gap = session.loop.top_two(prompt, answer)
    assert (first, second) == reference.loop.top_two(prompt, answer)[:2]
    assert gap == pytest.approx(reference.loop.top_two(prompt, answer)[2], abs=1e-4)


def test_a_round_waits_once(opened: Opener) -> None:
    session, machine = opened()
    waits, before = [], machine.driver.synchronizations
    for chunk in session.stream(SHORT[0], max_new_tokens=40, block_size=BLOCK):
        waits.append(machine.driver.synchronizations - before)
        assert chunk.round.verify > 0
        before = machine.driver.synchronizations
    assert len(waits) > 8
    assert set(waits[1:-1]) == {1}  # the last block is shorter, so a call may be bound and an old one freed


def test_steady_rounds_are_captured_once_and_launched(opened: Opener, reference: Session) -> None:
    session, machine = opened()
    assert answers(session, SHORT[:1]) == answers(reference, SHORT[:1])
    graphs, contexts = len(machine.driver.graphs), len(machine.tensorrt.contexts)
    launches = machine.driver.launches
    assert graphs >= 3  # target, drafter, scorer
    assert answers(session, SHORT[:1]) == answers(reference, SHORT[:1])
    assert len(machine.tensorrt.contexts) == contexts  # same shapes, same calls
    assert len(machine.driver.graphs) <= contexts
    assert machine.driver.launches - launches > 3 * 8


def test_an_engine_that_cannot_be_captured_runs_all_the_same(opened: Opener, reference: Session) -> None:
    session, machine = opened(capturable=False)
    assert session.notes == []
    assert answers(session, SHORT[:1]) == answers(reference, SHORT[:1])
    assert machine.driver.launches == 0
    assert "no CUDA graph of drafter: TensorRT cannot enqueue drafter: it gave no reason" in session.notes


def test_tensorrt_rtx_captures_by_itself(opened: Opener, reference: Session) -> None:
    session, machine = opened(backend="tensorrt-rtx")
    assert session.backend == "tensorrt-rtx"
    assert answers(session, SHORT[:1]) == answers(reference, SHORT[:1])
    assert machine.driver.launches == 0
    strategies = {c.engine.profiles[c.profile].name: c.config.cuda_graph_strategy for c in machine.tensorrt.contexts}
    assert strategies["verify"] == CudaGraphStrategy.WHOLE_GRAPH_CAPTURE
    assert strategies.get("prefill", CudaGraphStrategy.DISABLED) == CudaGraphStrategy.DISABLED


def test_a_gpu_too_small_is_said(own_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = machine_with(monkeypatch, write_engines(own_bundle), limit=200_000)
    with pytest.raises(UserError, match="4 lanes of 512 tokens do not fit in memory") as caught:
        load(own_bundle)
    assert "--max-context" in caught.value.hint
    assert machine.driver.released
    assert not machine.driver.live


def test_an_engine_tensorrt_does_not_read(own_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described = write_engines(own_bundle)
    monkeypatch.setattr("tests.runtime.simulated_tensorrt.Engine", lambda module, path: None)
    machine = machine_with(monkeypatch, described)
    machine.tensorrt.Runtime = lambda logger: Unreading(logger)
    with pytest.raises(UserError, match=r"cannot read `.*\.engine`:\n  magic tag does not match") as caught:
        load(own_bundle)
    assert caught.value.exit_code == EXIT_ENGINE
    assert caught.value.hint.endswith("--backend tensorrt --force")
    assert machine.driver.released


class Unreading:
    """A runtime that reads no engine."""

    def __init__(self, logger: Any):
        self._logger = logger

    def deserialize_cuda_engine(self, plan: Any) -> None:
        self._logger.log(self._logger.ERROR, "magic tag does not match")
