"""The whole runtime on a tiny exported bundle: real graphs, real tokenizer, judged by transformers' own greedy decoding."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lilicorr.runtime import Session, load
from lilicorr.runtime.bench import run_bench
from lilicorr.runtime.errors import UserError
from lilicorr.runtime.prompts import Prompt

TEXTS = ["the quick brown fox", "user", "over the lazy dog and the user asks why " * 9]

BLOCK = 5
WAYS = [{"block_size": BLOCK}, {"block_size": BLOCK, "use_head": False}, {"speculative": False}, {}]


@pytest.fixture(scope="module")
def session(tiny_bundle: Path) -> Iterator[Session]:
    with load(tiny_bundle, threads=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def expected(session: Session, tiny_target: Path) -> list[tuple[int, ...]]:
    """40 greedy tokens of transformers per text, up to and with a stop token."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(tiny_target).eval()
    answers = []
    for text in TEXTS:
        ids = torch.tensor([session.encode(text)])
        stops = list(session.manifest.target.stop_token_ids)
        out = model.generate(ids, do_sample=False, max_new_tokens=40, eos_token_id=stops, pad_token_id=0)
        answers.append(tuple(out[0, ids.shape[1] :].tolist()))
    return answers


@pytest.mark.parametrize("options", WAYS)
def test_same_tokens_as_transformers(session: Session, expected: list[tuple[int, ...]], options: dict) -> None:
    for text, answer in zip(TEXTS, expected, strict=True):
        assert session.generate(text, max_new_tokens=40, **options).token_ids == answer


def test_ragged_batch(session: Session, expected: list[tuple[int, ...]]) -> None:
    results = session.generate_batch(TEXTS, max_new_tokens=40, block_size=BLOCK)
    assert [result.token_ids for result in results] == expected


def test_conversation_reuses_its_prefix(session: Session) -> None:
    messages = [{"role": "user", "content": "the fox"}]
    for _ in range(3):
        *_, last = session.stream(messages, max_new_tokens=12, block_size=BLOCK, reuse_prefix=True)
        assert last.result.token_ids == session.generate(messages, max_new_tokens=12, speculative=False).token_ids
        messages += [{"role": "assistant", "content": last.result.text}, {"role": "user", "content": "and the dog"}]


def test_answer_fills_the_context(session: Session) -> None:
    most = session.manifest.limits.max_context
    prompt = session.encode(TEXTS[0])
    rows = [*prompt * (most // len(prompt) + 1)][: most - 3]
    rounds = list(session.loop.run([rows], 40))
    assert sum(len(lane.tokens) - lane.retracted for turn in rounds for lane in turn.lanes) <= 3
    assert rounds[-1].lanes[0].finish in ("context", "stop")
    with pytest.raises(UserError, match=f"context is {most}"):
        session.loop.run([[*rows, 1, 1, 1]], 40)


def test_bench_finds_no_difference(session: Session) -> None:
    report = run_bench(session, [Prompt(str(i), "", (text,)) for i, text in enumerate(TEXTS)], 24, compare_argmax=True)
    assert report["lossless"]["different"] == 0
    assert report["lossless"]["checked"] == 3


def test_flipped_byte_is_refused(own_bundle: Path) -> None:
    path = own_bundle / "weights" / "target.bin"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"weights/target\.bin` has sha256"):
        load(own_bundle, threads=1)
