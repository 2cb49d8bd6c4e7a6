"""The block of a round: chosen by costs and acceptance, and the same answer whatever is chosen."""

from __future__ import annotations

import numpy as np
import pytest

from lilicorr.runtime.block_choice import RETIME, TIMED, BlockChoice, LaneAcceptance, RoundCosts, best_block
from lilicorr.runtime.errors import UserError
from lilicorr.runtime.loop import GreedyLoop
from lilicorr.runtime.stats import Round
from lilicorr.runtime.steps import Steps
from tests.runtime.fakes import STOP, FakeBackend, fake_session, plain_answer
from tests.runtime.test_loop import Run, make, prompt

FLAT = RoundCosts((1.0, 1.0, 1.0, 1.0, 1.0), 0.2)  # verifying more costs nothing, drafting a fifth of a step
STEEP = RoundCosts((1.0, 1.5, 2.0, 2.5, 3.0), 0.2)


def seen(rounds: int, offered: int, accepted: int, slots: int = 4) -> LaneAcceptance:
    lane = LaneAcceptance(slots)
    for _ in range(rounds):
        lane.see(offered, accepted)
    return lane


def test_expected_tokens_of_a_fresh_lane_are_the_prior() -> None:
    assert LaneAcceptance(2).expected() == pytest.approx([1, 1.45, 1.45 + 0.45**2])


def test_expected_tokens_follow_what_was_accepted() -> None:
    always, never = seen(200, 4, 4).expected(), seen(200, 4, 0).expected()
    assert always[-1] == pytest.approx(5, abs=0.5)
    assert never[1] == pytest.approx(1, abs=0.05)


def test_a_slot_behind_a_wrong_one_was_not_tried() -> None:
    lane = seen(200, 4, 1)  # the second draft is always wrong, so nothing is known of the third
    first, second, third = np.diff(lane.expected())[:3]
    assert first == pytest.approx(1, abs=0.1)
    assert second == pytest.approx(0, abs=0.1)
    assert third / second == pytest.approx(0.45)


def test_a_slot_not_offered_for_long_is_forgotten() -> None:
    lane = seen(50, 4, 0)
    before = lane.expected()[1]
    for _ in range(500):
        lane.see(0, 0)
    assert before < 1.05
    assert lane.expected()[1] == pytest.approx(1.45, abs=0.01)


@pytest.mark.parametrize(
    ("costs", "lanes", "most", "block"),
    [
        (FLAT, [seen(99, 4, 4)], 5, 5),
        (FLAT, [seen(99, 4, 4)], 3, 3),
        (FLAT, [seen(99, 4, 0)], 5, 1),
        (FLAT, [seen(99, 4, 0), seen(99, 4, 4)], 5, 5),  # a batch shares its rounds
        (STEEP, [seen(99, 4, 4)], 5, 5),
        (STEEP, [seen(99, 4, 1)], 5, 2),
        (STEEP, [LaneAcceptance(4)], 5, 1),
    ],
)
def test_best_block(costs: RoundCosts, lanes: list[LaneAcceptance], most: int, block: int) -> None:
    assert best_block(costs, lanes, most) == block


def turn(offered: int, draft: float, score: float, verify: float, host: float = 0.5) -> Round:
    return Round(False, offered, (), draft, score, verify, draft + score + verify + host)


def test_first_rounds_are_timed_whole_blocks_before_plain_steps() -> None:
    choice = BlockChoice(5)
    blocks = []
    # The first of each is slow, as a first call is, and so may be another.
    for block, times in ((5, (90, 14, 99, 14, 16)), (1, (50, 99, 10, 12, 12))):
        for verify in times:
            blocks.append(choice.choose([LaneAcceptance(4)], 5))
            assert choice.costs is None
            choice.see(turn(4, 2.0, 1.0, verify) if block == 5 else turn(0, 0, 0, verify))
    assert blocks == [5] * 5 + [1] * 5
    assert choice.costs == RoundCosts((10.5, 11.5, 12.5, 13.5, 14.5), 3.0)


def test_timed_drafts_are_handed_the_rows_of_one_call() -> None:
    """As steady ones are: rows of several calls are handed over by a call of another width, which a GPU would bind and capture."""
    ids = next(ids for seed in range(90) if STOP not in plain_answer(ids := prompt(seed, 9), 40))
    loop, _, backend = make(60)
    widths, bind = [], backend.bind

    def recorded(graph: str, inputs, outputs):
        call = bind(graph, inputs, outputs)
        if graph != "drafter":
            return call
        return lambda: widths.append(inputs["features"].shape[1]) or call()

    backend.bind = recorded
    for _ in zip(range(6), loop.run([ids], 40, block=None), strict=False):  # the prefill and the timed drafts
        pass
    assert widths == [9, 5, 5, 5, 5]


def test_rounds_of_other_blocks_are_not_timed() -> None:
    choice = BlockChoice(5)
    for _ in range(20):  # the end of an answer leaves less room than a block
        assert choice.choose([LaneAcceptance(4)], 3) == 3
        choice.see(turn(2, 1, 1, 1))
    assert choice.costs is None


def test_rounds_are_timed_again() -> None:
    choice = BlockChoice(5, FLAT)
    for _ in range(RETIME):
        assert choice.costs == FLAT
        choice.see(turn(0, 0, 0, 7))
    assert choice.costs is None
    for block in (5, 1):
        for _ in range(TIMED + 1):
            assert choice.choose([LaneAcceptance(4)], 5) == block
            choice.see(turn(block - 1, 1, 1, 3))
    assert choice.costs == RoundCosts((3.5,) * 5, 2.0)


def test_every_number_of_lanes_has_its_own_times() -> None:
    prompts = [next(ids for seed in range(90) if STOP not in plain_answer(ids := prompt(seed, n), 80)) for n in (9, 12)]
    loop, _, _ = make(60)
    short = prompt(7, 30)
    run = Run(loop, [*prompts, short], 80, block=None)
    assert run.answers == [plain_answer(p, 80) for p in (*prompts, short)]
    counts = {len(turn.lanes) for turn in run.rounds[1:]}
    assert set(loop.choices) == counts
    assert len(counts) > 1


def test_an_unknown_machine_gives_the_same_answers() -> None:
    ids = next(ids for seed in range(90) if STOP not in plain_answer(ids := prompt(seed, 9), 100))
    loop, _, _ = make(60)
    for _ in range(2):
        run = Run(loop, [ids], 100, block=None)
        assert run.answers == [plain_answer(ids, 100)]
    assert loop.choices[1].costs is not None
    assert min(loop.choices[1].costs.verify) > 0


def adaptive(costs: RoundCosts, accuracy: int, lanes: int = 1, **limits: int) -> tuple[GreedyLoop, Steps, FakeBackend]:
    loop, steps, backend = make(accuracy, **limits)
    loop.choices = {n: BlockChoice(steps.block_size, costs) for n in range(1, lanes + 1)}
    return loop, steps, backend


@pytest.mark.parametrize("costs", [FLAT, STEEP, RoundCosts((1.0, 1.01, 1.02, 1.03, 1.04), 0.4)])
@pytest.mark.parametrize("accuracy", [0, 30, 60, 100])
def test_the_answer_is_the_plain_one(costs: RoundCosts, accuracy: int) -> None:
    for seed in range(6):
        ids = prompt(seed, 5 + 9 * seed)
        loop, steps, backend = adaptive(costs, accuracy)
        run = Run(loop, [ids], 100, block=None)
        assert run.answers == [plain_answer(ids, 100)]
        assert steps.drafter.lengths[0] <= steps.target.lengths[0]
        assert all(width <= 16 for width in backend.widths)


@pytest.mark.parametrize("accuracy", [10, 25])
def test_ragged_lanes_keep_their_features_through_plain_steps(accuracy: int) -> None:
    costs = RoundCosts((1.0, 1.05, 1.1, 1.15, 1.2), 0.3)
    for seed in range(8):
        lengths = np.random.default_rng(seed).integers(1, 60, 4).tolist()
        prompts = [prompt(10 * seed + i, length) for i, length in enumerate(lengths)]
        loop, _, _ = adaptive(costs, accuracy, lanes=4)
        run = Run(loop, prompts, 80, block=None)
        assert run.answers == [plain_answer(p, 80) for p in prompts]
        offered = [turn.offered for turn in run.rounds[1:]]
        assert 0 in offered, "the case needs plain steps"
        assert max(offered) > 0, "the case needs drafts"


def test_more_plain_steps_than_the_features_buffer_holds() -> None:
    ids = next(ids for seed in range(90) if STOP not in plain_answer(ids := prompt(seed, 9), 120))
    loop, steps, backend = adaptive(RoundCosts((1.0,) * 5, 9.0), 60, prefill_chunk=16)  # a draft never pays
    run = Run(loop, [ids], 120, block=None)
    assert run.answers == [plain_answer(ids, 120)]
    assert {turn.offered for turn in run.rounds} == {0}
    assert backend.calls.count("drafter") == steps.drafter.lengths[0] // 16 > 4


def test_wrong_drafts_are_given_up_and_right_ones_kept() -> None:
    ids = next(ids for seed in range(90) if STOP not in plain_answer(ids := prompt(seed, 9), 100))
    offered = {}
    for accuracy in (0, 100):
        loop, _, _ = adaptive(FLAT, accuracy)
        offered[accuracy] = [turn.offered for turn in Run(loop, [ids], 100, block=None).rounds[1:]]
    assert set(offered[100][:-1]) == {4}
    assert offered[0].count(0) > 60


def test_a_fixed_block_is_kept() -> None:
    loop, _, backend = make(100)
    Run(loop, [prompt(1, 9)], 40, block=3)
    assert set(backend.widths[1:-1]) <= {3, 2, 1}
    assert 3 in backend.widths
    backend.widths.clear()
    Run(loop, [prompt(1, 9)], 40, block=1)
    assert set(backend.widths[1:]) == {1}


def test_a_longer_block_than_served_is_refused() -> None:
    loop, _, _ = make()
    with pytest.raises(UserError, match=r"block size 6, the bundle serves 1 to 5"):
        loop.run([prompt(0, 5)], 10, block=6)


@pytest.mark.parametrize("speculative", [True, False])
def test_a_session_refuses_it_too_even_where_it_is_not_used(speculative: bool) -> None:
    with pytest.raises(UserError, match=r"block size 6, the bundle serves 1 to 5"):
        fake_session().generate("Why?", block_size=6, speculative=speculative)


def test_a_conversation_goes_on_after_plain_steps() -> None:
    """And forwards nothing again: the drafter is given what it lacks."""
    loop, _, backend = adaptive(RoundCosts((1.0,) * 5, 9.0), 60, prefill_chunk=64)  # a draft never pays
    ids, forwarded = prompt(4, 9), 9
    for _ in range(3):
        answer = plain_answer(ids, 30)
        assert len(answer) == 30, "the case needs whole answers"
        backend.widths.clear()
        run = Run(loop, [ids], 30, block=None, reuse_prefix=True)
        assert run.answers == [answer]
        assert {turn.offered for turn in run.rounds} == {0}
        assert sum(backend.widths) == forwarded + 29
        ids, forwarded = [*ids, *answer, 5, 6], 3  # the new message, and the token that ended the answer
