"""A backend without models: the next token is a hash of every token before it, read back from the K/V cache.

A row committed to the wrong place, a row too many or a feature row handed over twice changes every later token (or fails an
assertion here), so loop tests can compare whole answers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType

import numpy as np

from lilicorr.runtime.arena import capacity_for
from lilicorr.runtime.block_choice import BlockChoice, RoundCosts
from lilicorr.runtime.call_times import CallTimes
from lilicorr.runtime.contract import expected_interfaces
from lilicorr.runtime.host import HostMemory
from lilicorr.runtime.manifest import (
    SCHEMA_VERSION,
    Cache,
    Component,
    Drafter,
    Head,
    Limits,
    Manifest,
    Target,
)
from lilicorr.runtime.session import Session
from lilicorr.runtime.tokenizer import ChatTokenizer

VOCAB = 97
STOP = 96


def tiny_manifest(
    *, max_context: int = 200, max_batch: int = 4, prefill_chunk: int = 16, block_size: int = 5, head: bool = True
) -> Manifest:
    cache = Cache(layers=2, kv_heads=2, head_dim=3, dtype="float32")
    target = Target("fake", "FakeForCausalLM", 4, VOCAB, 4096, (STOP,), None, None, cache)
    drafter = Drafter("fake", "Fake", block_size, block_size, 3, 0, (0,), None, {}, Cache(1, 2, 3, "float32"))
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        lilicorr_version="0",
        created="2026-01-01T00:00:00Z",
        command=("test",),
        precision="fp32",
        attention="two-part",
        target=target,
        drafter=drafter,
        head=Head("lilicorr", 1.0, 1e-6) if head else None,
        limits=Limits(max_context, max_batch, prefill_chunk),
        components={},
        files=(),
        plugin=None,
        environment={},
    )
    for name, (inputs, outputs) in expected_interfaces(manifest).items():
        manifest.components[name] = Component(f"{name}.onnx", (), inputs, outputs, 20, 10)
    return manifest


def next_token(history: Sequence[int]) -> int:
    """The fake target: depends on every token and its order; a stop token about once in 97."""
    value = 7
    for token in history:
        value = (value * 31 + int(token) + 1) % 1_000_003
    return value % VOCAB


def plain_answer(prompt: Sequence[int], most: int) -> list[int]:
    """What any lossless decoder must emit."""
    history, answer = list(prompt), []
    while len(answer) < most and (not answer or answer[-1] != STOP):
        answer.append(next_token(history))
        history.append(answer[-1])
    return answer


class FakeBackend(HostMemory, CallTimes):
    """`accuracy` in percent: how often the head's walk, and half as often the first candidate, is right per slot."""

    name = "fake"
    notes = ("it is a fake",)

    def __init__(self, accuracy: int = 70):
        super().__init__()
        self.accuracy = accuracy
        self.calls: list[str] = []
        self.widths: list[int] = []

    def __enter__(self) -> FakeBackend:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def bind(self, graph: str, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]):
        run = getattr(self, f"_{graph}")

        def call() -> None:
            self.calls.append(graph)
            start = time.perf_counter()
            run(inputs, outputs)
            self.add(graph, time.perf_counter() - start)

        return call

    def capacity_for(self, rows: int, limit: int) -> int:
        return capacity_for(rows, limit)

    def _target(self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> None:
        tokens = inputs["tokens"]
        self.widths.append(tokens.shape[1])
        for lane, length in enumerate(inputs["lengths"].tolist()):
            cached = [inputs[f"{kind}_cache_{i}"][lane, :, :length] for i in range(2) for kind in "kv"]
            assert all((rows == cached[0][:1, :, :1]).all() for rows in cached), "layers and heads drifted apart"
            history = cached[0][0, :, 0].tolist()
            for column, token in enumerate(tokens[lane].tolist()):
                history.append(token)
                outputs["next_ids"][lane, column] = next_token(history)
                outputs["features"][lane, column] = (token, length + column, 0, 0)
                for i in range(2):
                    outputs[f"new_k_{i}"][lane, :, column] = outputs[f"new_v_{i}"][lane, :, column] = token
        if "logits" in outputs:
            outputs["logits"][...] = 0
            outputs["logits"][0, 0, outputs["next_ids"][0, 0]] = 1

    def _drafter(self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> None:
        slots = outputs["candidate_ids"].shape[1]
        for lane, length in enumerate(inputs["lengths"].tolist()):
            count = int(inputs["count"][lane])
            rows = inputs["features"][lane, :count]
            assert rows[:, 1].tolist() == list(range(length, length + count)), "feature rows at wrong positions"
            outputs["new_k_0"][lane] = outputs["new_v_0"][lane] = inputs["features"][lane, None, :, :1]
            history = inputs["k_cache_0"][lane, 0, :length, 0].tolist() + rows[:, 0].tolist()
            history.append(int(inputs["anchor"][lane]))
            for slot in range(slots):
                truth = next_token(history)
                dice = (sum(history) * 7919 + slot) % 100
                where = 0 if dice < self.accuracy // 2 else 1 if dice < self.accuracy else 2
                wrong = (truth + 1) % VOCAB
                outputs["candidate_ids"][lane, slot] = [truth if k == where and where < 2 else wrong for k in range(3)]
                outputs["hidden"][lane, slot] = where
                history.append(truth)

    def _scorer(self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> None:
        path = inputs["hidden"][:, :, :1].astype(np.int64)
        outputs["draft_tokens"][...] = np.take_along_axis(inputs["candidate_ids"], path, axis=2)[:, :, 0]


class FakeTokenizer(ChatTokenizer):
    """One character per token; the stop token has no text. A conversation is its contents in a row."""

    has_template = True

    def __init__(self) -> None:
        """There are no files to read."""

    def encode_text(self, text: str) -> list[int]:
        return [94 if char == "\n" else ord(char) - 32 for char in text]

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        return self.encode_text("".join(message["content"] for message in messages))

    def decode(self, ids: Sequence[int]) -> str:
        return "".join("\n" if token == 94 else chr(token + 32) for token in ids if token < 95)


def fake_session(accuracy: int = 70, **limits: int | bool) -> Session:
    manifest = tiny_manifest(**limits)
    session = Session(FakeBackend(accuracy), manifest, FakeTokenizer())
    # Verifying costs the same for every width and drafting nothing, so that rounds do not depend on this machine.
    block = manifest.drafter.block_size
    flat = RoundCosts((1.0,) * block, 0.0)
    session.loop.choices = {n: BlockChoice(block, flat) for n in range(1, manifest.limits.max_batch + 1)}
    return session
