"""The loop on a fake backend whose answers depend on every committed row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from lilicorr.runtime.errors import UserError
from lilicorr.runtime.loop import GreedyLoop
from lilicorr.runtime.stats import Round, Stats
from lilicorr.runtime.steps import Steps
from tests.runtime.fakes import STOP, VOCAB, FakeBackend, plain_answer, tiny_manifest


class Run:
    """A whole generation, gathered."""

    def __init__(self, loop: GreedyLoop, prompts: Sequence[Sequence[int]], most: int, **options):
        self.answers: list[list[int]] = [[] for _ in prompts]
        self.finish: list[str | None] = [None] * len(prompts)
        self.stats = [Stats(len(p)) for p in prompts]
        self.rounds: list[Round] = []
        options = {"block": loop.steps.block_size, **options}  # whole blocks, unless a test says otherwise
        for turn in loop.run(prompts, most, **options):
            self.rounds.append(turn)
            for lane in turn.lanes:
                assert self.finish[lane.lane] is None, "a finished lane went on"
                self.answers[lane.lane] += lane.tokens
                if lane.retracted:
                    del self.answers[lane.lane][-lane.retracted :]
                self.finish[lane.lane] = lane.finish
                self.stats[lane.lane].add(turn, lane)


def make(accuracy: int = 70, **limits) -> tuple[GreedyLoop, Steps, FakeBackend]:
    manifest, backend = tiny_manifest(**limits), FakeBackend(accuracy)
    steps = Steps(backend, manifest)
    return GreedyLoop(steps, manifest), steps, backend


def prompt(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, STOP, length).tolist()


@pytest.mark.parametrize("accuracy", [0, 50, 90, 100])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 40])
def test_speculative_equals_plain(accuracy: int, length: int) -> None:
    loop, steps, _ = make(accuracy)
    for seed in range(5):
        ids = prompt(seed, length)
        expected = plain_answer(ids, 60)
        for options in ({}, {"use_head": False}, {"block": 1}):
            run = Run(loop, [ids], 60, **options)
            assert run.answers == [expected]
            assert run.finish == ["stop" if expected[-1] == STOP else "length"]
            assert steps.target.lengths.tolist() == [length + len(expected) - 1]
            assert run.stats[0].new_tokens == len(expected) == 1 + sum(run.stats[0].acceptance)


def test_better_drafts_take_fewer_rounds() -> None:
    ids = next(ids for seed in range(50) if STOP not in plain_answer(ids := prompt(seed, 9), 60))
    rounds = []
    for accuracy, head in ((100, True), (60, True), (60, False), (0, True)):
        loop, _, _ = make(accuracy)
        run = Run(loop, [ids], 60, use_head=head)
        rounds.append(len(run.rounds) - 1)
    assert rounds[0] == 12  # 59 tokens after the prefill's, 5 a round
    assert rounds[3] == 59
    assert rounds == sorted(rounds)
    assert rounds[1] < rounds[2]  # the head beats the first candidate


def test_without_the_head_the_first_candidate_is_drafted() -> None:
    ids = next(ids for seed in range(50) if STOP not in plain_answer(ids := prompt(seed, 9), 60))
    loop, _, _ = make(200)  # the first candidate is always right
    assert len(Run(loop, [ids], 60, use_head=False).rounds) - 1 == 12
    loop, _, _ = make(100)  # half the time
    assert len(Run(loop, [ids], 60, use_head=False).rounds) - 1 > 12


def test_ragged_batch_equals_single() -> None:
    loop, steps, _ = make()
    for seed in range(8):
        lengths = np.random.default_rng(seed).integers(1, 60, 4).tolist()
        prompts = [prompt(10 * seed + i, length) for i, length in enumerate(lengths)]
        run = Run(loop, prompts, 50)
        assert run.answers == [plain_answer(p, 50) for p in prompts]
        last = steps.target.lengths.tolist()  # lanes that were still active in the last round
        assert set(last) <= {len(p) + len(a) - 1 for p, a in zip(prompts, run.answers, strict=True)}


def test_plain_never_drafts() -> None:
    loop, _, backend = make()
    Run(loop, [prompt(1, 40)], 10, block=1)
    assert set(backend.calls) == {"target"}


def test_bundle_without_head_never_scores() -> None:
    loop, _, backend = make(head=False)
    run = Run(loop, [prompt(1, 40)], 10)
    assert run.answers == [plain_answer(prompt(1, 40), 10)]
    assert "scorer" not in backend.calls
    assert "drafter" in backend.calls


def test_context_limit_is_a_clean_stop() -> None:
    loop, steps, backend = make(100, max_context=50)
    ids = next(ids for seed in range(50) if STOP not in plain_answer(ids := prompt(seed, 42), 8))
    run = Run(loop, [ids], 100)
    assert run.answers == [plain_answer(ids, 8)]  # 42 + 8 = 50
    assert run.finish == ["context"]
    assert steps.target.lengths.tolist() == [49]
    assert backend.widths[-1] == 2  # 1 by the prefill, 5, and the last block is cut to the 2 that are left


def test_prompt_of_the_whole_context_is_refused() -> None:
    loop, _, _ = make(max_context=50)
    with pytest.raises(UserError, match=r"50 tokens .* context is 50"):
        loop.run([prompt(0, 50)], 10)
    assert Run(loop, [prompt(0, 49)], 10).answers == [plain_answer(prompt(0, 49), 1)]


def test_bad_requests() -> None:
    loop, _, _ = make()
    with pytest.raises(UserError, match="the prompt is empty"):
        loop.run([[1], []], 10)
    with pytest.raises(UserError, match="5 prompts in one batch, the bundle serves 1 to 4"):
        loop.run([[1]] * 5, 10)
    with pytest.raises(UserError, match="max_new_tokens is 0"):
        loop.run([[1]], 0)


def test_stop_token_ends_inside_an_accepted_block() -> None:
    loop, steps, _ = make(100)
    seen = 0
    for seed in range(60):
        ids = prompt(seed, 12)
        expected = plain_answer(ids, 60)
        run = Run(loop, [ids], 60)
        assert run.answers == [expected]
        if expected[-1] == STOP and (len(expected) - 1) % 5:
            seen += 1
            assert run.stats[0].acceptance[-1] == (len(expected) - 1) % 5
            assert steps.target.lengths.tolist() == [12 + len(expected) - 1]
    assert seen > 5


@pytest.mark.parametrize("keep", [0, 1, 2, 3, 6, 8])
def test_cut_takes_back_exactly(keep: int) -> None:
    """A stop string completed by token 8 whose text starts after `keep` tokens."""
    loop, steps, _ = make(100)
    ids = next(ids for seed in range(50) if STOP not in plain_answer(ids := prompt(seed, 12), 30))
    total = 0

    def cut(lane: int, tokens: Sequence[int]) -> int | None:
        nonlocal total
        total += len(tokens)
        return keep if total >= 8 else None

    run = Run(loop, [ids], 30, cut=cut)
    assert run.answers == [plain_answer(ids, 30)[:keep]]
    assert run.finish == ["stop"]
    assert run.stats[0].new_tokens == keep
    assert sum(run.stats[0].acceptance) == max(0, keep - 1)
    assert steps.target.lengths.tolist() == [12 + max(0, keep - 1)]


def test_reused_prefix_changes_nothing_but_the_prefill() -> None:
    loop, _, backend = make(80)
    conversation = prompt(3, 45)
    for turn in range(4):
        backend.widths.clear()
        run = Run(loop, [conversation], 20, reuse_prefix=True)
        assert run.answers == [plain_answer(conversation, 20)]
        forwarded = sum(backend.widths) - sum(turn.offered + 1 for turn in run.rounds[1:])
        assert forwarded == 45 if turn == 0 else 10 < forwarded <= 10 + 5 + 1  # the new message and the last block
        conversation = conversation + run.answers[0] + prompt(turn, 10)
    branch = [*conversation[:20], 5, 6]  # another continuation of an old prefix
    assert Run(loop, [branch], 20, reuse_prefix=True).answers == [plain_answer(branch, 20)]
    assert Run(loop, [branch], 20, reuse_prefix=True, block=1).answers == [plain_answer(branch, 20)]
    assert Run(loop, [branch[:10]], 20, reuse_prefix=True).answers == [plain_answer(branch[:10], 20)]


def test_abandoned_run_leaves_the_loop_usable_and_cannot_go_on() -> None:
    loop, _, _ = make()
    ids = next(ids for seed in range(50) if STOP not in plain_answer(ids := prompt(seed, 12), 30))
    first = loop.run([ids], 30)
    next(first)
    next(first)
    assert Run(loop, [ids], 30).answers == [plain_answer(ids, 30)]
    with pytest.raises(RuntimeError, match="another one was started"):
        next(first)


def test_a_run_begun_too_late_cannot_write_into_the_latest() -> None:
    loop, _, _ = make()
    ids = next(ids for seed in range(50) if STOP not in plain_answer(ids := prompt(seed, 12), 30))
    late, latest = loop.run([prompt(99, 9)], 30), loop.run([ids], 30)
    tokens = [*next(latest).lanes[0].tokens]
    with pytest.raises(RuntimeError, match="another one was started"):
        next(late)
    assert tokens + [token for turn in latest for token in turn.lanes[0].tokens] == plain_answer(ids, 30)


def test_token_without_embedding_is_refused() -> None:
    loop, _, _ = make()
    with pytest.raises(UserError, match=f"token {VOCAB}, the target has 0 to {VOCAB - 1}"):
        loop.run([[1, VOCAB, 2]], 30)


def test_top_two_names_the_next_token() -> None:
    loop, _, _ = make()
    ids = prompt(5, 20)
    answer = plain_answer(ids, 6)
    first, second, gap = loop.top_two(ids, answer[:5])
    assert first == answer[5]
    assert second in range(VOCAB)
    assert gap == 1.0


def test_seconds_add_up() -> None:
    loop, _, _ = make()
    for turn in Run(loop, [prompt(2, 20)], 30).rounds[1:]:
        assert 0 < turn.verify < turn.total
        assert turn.host > 0
        assert turn.draft > 0
