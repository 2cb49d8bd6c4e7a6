"""The report on a fake backend, where every number can be counted by hand, and the verdicts on made-up answers."""

from __future__ import annotations

import json

import pytest

from lilicorr.runtime.bench import run_bench
from lilicorr.runtime.bench_report import table
from lilicorr.runtime.errors import UserError
from lilicorr.runtime.lossless import compare
from lilicorr.runtime.prompts import Prompt
from tests.runtime.fakes import STOP, FakeTokenizer, fake_session, plain_answer


def lively(most: int, count: int) -> list[str]:
    ids = FakeTokenizer().encode_text
    return [t for i in range(300) if STOP not in plain_answer(ids(t := f"prompt {i}"), most)][:count]


def test_report_of_a_perfect_drafter() -> None:
    prompts = [Prompt(str(i), "c", (text,)) for i, text in enumerate(lively(21, 3))]
    report = run_bench(fake_session(100), prompts, 21, compare_argmax=True)
    assert report["acceptance_length"] == 5  # 20 tokens after the prefill's, in 4 rounds of 5
    assert report["acceptance_histogram"] == {"5": 12}
    assert report["lossless"] == {"checked": 3, "identical": 3, "ties": 0, "different": 0}
    assert (report["prompts"], report["new_tokens"], report["rounds"]) == (3, 63, 12)
    assert report["slot_acceptance"] == [1, 1, 1, 1]
    assert 1 < report["acceptance_length_argmax"] < 5
    assert set(report["tokens_per_second"]) == {"speculative", "plain"}
    assert report["speedup"] == pytest.approx(
        report["tokens_per_second"]["speculative"] / report["tokens_per_second"]["plain"]
    )
    assert sum(report["time_share"].values()) == pytest.approx(1)
    assert set(report["verify_ms_by_width"]) == {"1", "2", "4", "5"}
    assert report["by_category"]["c"]["acceptance_length"] == 5
    json.dumps(report)
    assert "3 of 3, 0 ties, 0 different" in table(report)


def test_acceptance_is_averaged_over_prompts_not_rounds() -> None:
    first, second = lively(21, 2)
    one, other = (run_bench(fake_session(60), [Prompt("a", "", (t,))], 21) for t in (first, second))
    both = run_bench(fake_session(60), [Prompt("a", "x", (first,)), Prompt("b", "y", (second,))], 21)
    assert one["rounds"] != other["rounds"]
    assert both["acceptance_length"] == pytest.approx((one["acceptance_length"] + other["acceptance_length"]) / 2)
    assert both["by_category"]["y"]["acceptance_length"] == other["acceptance_length"]


def test_turns_join_the_conversation_and_long_prompts_are_skipped() -> None:
    (text,) = lively(10, 1)
    session = fake_session(max_context=64)
    report = run_bench(session, [Prompt("two", "", (text, "and?")), Prompt("long", "", ("x" * 64,))], 10)
    assert report["lossless"]["checked"] == 2
    assert report["skipped"] == ["long"]
    report = run_bench(session, [Prompt("full", "", ("y" * 60,))], 10)
    assert report["context_stops"] == 1
    with pytest.raises(UserError, match="no prompt fits the bundle's context of 64 tokens"):
        run_bench(session, [Prompt("long", "", ("x" * 64,))], 10)


def test_a_system_message_opens_the_conversation() -> None:
    (text,) = lively(10, 1)
    prompts = [Prompt("fits", "", (text,), "s" * 8), Prompt("does not", "", (text,), "s" * 64)]
    report = run_bench(fake_session(max_context=64), prompts, 10)
    assert report["skipped"] == ["does not"]


def test_blocks_are_chosen_from_the_first_timed_answer_on() -> None:
    (text,) = lively(80, 1)
    session = fake_session(100, block_size=12)
    session.loop.choices.clear()
    run_bench(session, [Prompt("fits", "", (text,))], 1)  # whose answers have no rounds
    assert session.loop.choices[1].costs is not None


def test_a_fixed_block_is_that_of_every_round() -> None:
    (text,) = lively(21, 1)
    report = run_bench(fake_session(100), [Prompt("fits", "", (text,))], 21, block_size=3)
    assert report["block_histogram"] == {"2": 1, "3": 6}  # 20 tokens after the prefill's
    assert report["tokens_per_round"] == pytest.approx(20 / 7)


def test_context_smaller_than_the_block() -> None:
    report = run_bench(fake_session(max_context=3, block_size=5), [Prompt("tiny", "", ("x",))], 10)
    assert report["lossless"] == {"checked": 1, "identical": 1, "ties": 0, "different": 0}


def test_first_prompt_too_long_does_not_stop_the_bench() -> None:
    (text,) = lively(10, 1)
    report = run_bench(fake_session(max_context=64), [Prompt("l", "", ("x" * 64,)), Prompt("ok", "", (text,))], 10)
    assert report["prompts"] == 1


@pytest.mark.parametrize(
    ("plain", "speculative", "best", "expected"),
    [
        ([1, 2, 3], [1, 2, 3], None, ("identical", None, None)),
        ([1, 2, 3], [1, 4, 3], (2, 4, 1e-4), ("tie", 1, 1e-4)),
        ([1, 2, 3], [1, 4, 3], (4, 2, 1e-4), ("tie", 1, 1e-4)),
        ([1, 2, 3], [1, 4, 3], (2, 4, 1e-2), ("different", 1, 1e-2)),
        ([1, 2, 3], [1, 4, 3], (2, 5, 1e-4), ("different", 1, 1e-4)),
        ([1, 2, 3], [1, 2], None, ("different", 2, None)),
        ([1], [2], None, ("different", 0, None)),
    ],
)
def test_verdicts(plain, speculative, best, expected) -> None:
    def top_two(start):
        assert start == plain[: len(start)] == speculative[: len(start)]
        return best

    assert compare(plain, speculative, "fp32", top_two) == expected
