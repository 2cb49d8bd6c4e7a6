"""Streaming text over a byte-per-token toy decoder: every UTF-8 boundary is a token boundary."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lilicorr.runtime.text import Detokenizer, TextStream


def decode(ids: Sequence[int]) -> str:
    return bytes(ids).decode("utf-8", errors="replace")


def shown(stream: TextStream) -> str:
    return "".join(piece.text for piece in stream.take())


@given(st.text())
def test_valid_text_comes_out_once(text: str) -> None:
    detokenizer = Detokenizer(decode)
    assert "".join(detokenizer.push(token) for token in text.encode()) + detokenizer.flush() == text


@given(st.binary())
def test_any_bytes_equal_decoding_at_once(data: bytes) -> None:
    detokenizer = Detokenizer(decode)
    assert "".join(detokenizer.push(token) for token in data) + detokenizer.flush() == decode(list(data))


def test_no_half_character_is_shown() -> None:
    detokenizer = Detokenizer(decode)
    assert [detokenizer.push(token) for token in "aé😀".encode()] == ["a", "", "é", "", "", "", "😀"]


def test_window_keeps_the_leading_space_rule_of_sentencepiece() -> None:
    words = ["▁Hello", "▁wor", "ld", "▁!"]

    def decode_words(ids: Sequence[int]) -> str:
        return "".join(words[i] for i in ids).replace("▁", " ").removeprefix(" ")

    detokenizer = Detokenizer(decode_words)
    assert [detokenizer.push(i) for i in range(4)] == ["Hello", " wor", "ld", " !"]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_stop_string_in_blocks_of_any_size(size: int) -> None:
    stream = TextStream(decode, ["END", "\n\n"])
    ids = list(b"some EN text\nENDing")
    out, kept = "", None
    for start in range(0, len(ids), size):
        kept = stream.push(ids[start : start + size])
        out += shown(stream)
        if kept is not None:
            break
    assert (out, stream.text, kept) == ("some EN text\n", "some EN text\n", 13)


def test_text_that_may_become_a_stop_is_held_back() -> None:
    stream = TextStream(decode, ["STOP"])
    assert stream.push(list(b"an ST")) is None
    assert shown(stream) == "an "
    stream.push(list(b"AR"))
    assert shown(stream) == "STAR"
    stream.push(list(b" STO"))
    assert shown(stream) == " "
    stream.finish()
    assert shown(stream) == "STO"
    assert stream.text == "an STAR STO"


def test_stop_at_the_very_start_keeps_nothing() -> None:
    stream = TextStream(decode, ["ab"])
    assert stream.push(list(b"abc")) == 0
    assert stream.text == ""


def test_stop_inside_a_token_keeps_the_token_and_cuts_the_text() -> None:
    pieces = ["one ", "two. Th", "ree"]
    stream = TextStream(lambda ids: "".join(pieces[i] for i in ids), ["."])
    assert stream.push([0, 1, 2]) == 2
    assert stream.text == "one two"


def test_the_earliest_of_several_stops_wins() -> None:
    stream = TextStream(lambda ids: "".join("x yz end"[i * 8 : i * 8 + 8] for i in ids), ["end", "yz"])
    stream.push([0])
    assert stream.text == "x "


def test_pieces_name_their_token() -> None:
    stream = TextStream(decode)
    stream.push(list("é!".encode()))
    assert stream.take() == [(1, "é"), (2, "!")]


@given(st.text(alphabet="abé", max_size=40), st.lists(st.text(alphabet="abé", min_size=1, max_size=3), max_size=3))
def test_equals_cutting_the_whole_text(text: str, stops: list[str]) -> None:
    stream, out, kept = TextStream(decode, stops), "", None
    ids = list(text.encode())
    for token in ids:
        kept = stream.push([token])
        out += shown(stream)
        if kept is not None:
            break
    stream.finish()
    out += shown(stream)
    ends = [(text.find(stop) + len(stop), stop) for stop in stops if stop in text]
    expected = text
    if ends:  # the stop completed first ends the text; of several completed by one token, the longest begins first
        end = min(ends)[0]
        expected = text[: end - max(len(stop) for at, stop in ends if at == end)]
    assert out == stream.text == expected
    assert (kept is not None) == bool(ends)
    if kept is not None:
        assert decode(ids[:kept]) == expected
