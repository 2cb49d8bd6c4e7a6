"""Text, tokens and statistics of the Python interface agree."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import pytest

from lilicorr.runtime.session import Result
from tests.runtime.fakes import STOP, FakeTokenizer, fake_session, plain_answer

TOKENIZER = FakeTokenizer()


def answer_of(text: str, most: int) -> list[int]:
    return plain_answer(TOKENIZER.encode_text(text), most)


def lively_prompt(most: int) -> str:
    """A prompt whose answer does not end by itself."""
    return next(text for i in range(200) if STOP not in answer_of(text := f"prompt {i}", most))


def test_stream_joins_to_the_answer() -> None:
    session, prompt = fake_session(), lively_prompt(40)
    chunks = list(session.stream(prompt, max_new_tokens=40))
    result = chunks[-1].result
    assert result == Result(
        TOKENIZER.decode(answer_of(prompt, 40)), tuple(answer_of(prompt, 40)), "length", result.stats
    )
    assert "".join(text for chunk in chunks for text, _ in chunk.pieces) == result.text
    assert all(chunk.result is None for chunk in chunks[:-1])
    drafted = sum(len(text) for chunk in chunks for text, drafted in chunk.pieces if drafted)
    assert (
        drafted == sum(result.stats.accepted) == 39 - len(result.stats.acceptance) + (39 - sum(result.stats.acceptance))
    )


@pytest.mark.parametrize("start", [0, 1, 7, 12, 13])
@pytest.mark.parametrize("length", [1, 3, 9])
def test_stop_string_anywhere(start: int, length: int) -> None:
    session, prompt = fake_session(90), lively_prompt(40)
    text = TOKENIZER.decode(answer_of(prompt, 40))
    stop = text[start : start + length]
    start = text.index(stop)
    for options in ({}, {"speculative": False}):
        chunks = list(session.stream(prompt, max_new_tokens=40, stop=[stop, "never"], **options))
        result = chunks[-1].result
        assert result.text == text[:start] == "".join(t for chunk in chunks for t, _ in chunk.pieces)
        assert TOKENIZER.decode(result.token_ids) == result.text
        assert result.finish_reason == "stop"
        assert result.stats.new_tokens == len(result.token_ids)
        assert sum(result.stats.acceptance) == max(0, len(result.token_ids) - 1)
    assert session.generate(prompt, max_new_tokens=40, stop=stop).text == text[:start]


def test_batch_equals_single() -> None:
    session = fake_session()
    prompts = ["a", "a longer one, of several chunks of prefill", lively_prompt(30)]
    together = session.generate_batch(prompts, max_new_tokens=30, stop=["q"])
    for prompt, result in zip(prompts, together, strict=True):
        alone = session.generate(prompt, max_new_tokens=30, stop=["q"])
        assert (result.text, result.token_ids, result.finish_reason) == (
            alone.text,
            alone.token_ids,
            alone.finish_reason,
        )


def test_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="temperature"):
        fake_session().generate("a", temperature=1.0)


def test_closed_session_is_refused_and_frees_its_engines() -> None:
    session, prompt = fake_session(), lively_prompt(40)
    stream, engines = session.stream(prompt), weakref.ref(session.loop)
    next(stream)
    session.close()
    session.close()
    with pytest.raises(RuntimeError, match="this session is closed"):
        next(stream)
    with pytest.raises(RuntimeError, match="this session is closed"):
        session.generate(prompt)
    del stream
    assert engines() is None


def test_second_thread_is_refused_and_disturbs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    session, prompt = fake_session(), lively_prompt(40)
    verify, caught = session.loop.steps.verify, list[BaseException]()

    def intrude() -> None:
        try:
            session.generate("another prompt")
        except RuntimeError as error:
            caught.append(error)

    def verify_while_another_thread_tries(tokens: np.ndarray) -> np.ndarray:
        thread = threading.Thread(target=intrude)
        thread.start()
        thread.join()
        return verify(tokens)

    monkeypatch.setattr(session.loop.steps, "verify", verify_while_another_thread_tries)
    assert session.generate(prompt, max_new_tokens=40).token_ids == tuple(answer_of(prompt, 40))
    assert caught
    assert all("another thread is using this session" in str(error) for error in caught)
