"""The Python interface: `load` a bundle, then `generate`, `generate_batch` or `stream`.

Joins tokenizer, loop and text; prints nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from lilicorr.runtime.bundle import open_bundle
from lilicorr.runtime.engine import Backend
from lilicorr.runtime.errors import UserError
from lilicorr.runtime.loop import GreedyLoop
from lilicorr.runtime.manifest import Manifest
from lilicorr.runtime.options import Options
from lilicorr.runtime.request import check_block
from lilicorr.runtime.stats import LaneRound, Round, Stats
from lilicorr.runtime.steps import Steps
from lilicorr.runtime.text import TextStream
from lilicorr.runtime.tokenizer import ChatTokenizer, Prompt


@dataclass(frozen=True)
class Result:
    """One answer. `token_ids` ends with the stop token when one ended it, and never holds what only a stop string needed."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str  # "stop", "length" (max_new_tokens) or "context" (the bundle's context is full)
    stats: Stats


@dataclass(frozen=True)
class Chunk:
    """What one round adds to a streamed answer.

    Attributes:
        pieces: (text, accepted draft?) in order; joined over all chunks they are the answer's text.
        round: Timings and token counts.
        result: The whole answer, in the last chunk only.
    """

    pieces: tuple[tuple[str, bool], ...]
    round: Round
    result: Result | None


class Session:
    """An open bundle on one backend. A context manager; one thread at a time, and used once closed it raises RuntimeError."""

    def __init__(self, backend: Backend, manifest: Manifest, tokenizer: ChatTokenizer):
        self.manifest, self.tokenizer, self._backend = manifest, tokenizer, backend
        self._loop: GreedyLoop | None = GreedyLoop(Steps(backend, manifest), manifest)
        self._turn = threading.Lock()

    @property
    def backend(self) -> str:
        """ "ort", "tensorrt" or "tensorrt-rtx"."""
        return self._backend.name

    @property
    def notes(self) -> list[str]:
        """What made it slower so far than it should be."""
        return list(self._backend.notes)

    @property
    def loop(self) -> GreedyLoop:
        """Engines and caches; gone once the session is closed."""
        if self._loop is None:
            raise RuntimeError("this session is closed")
        return self._loop

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._loop = None  # its bound calls keep the backend's engines alive
        self._backend.__exit__(kind, error, at)

    def close(self) -> None:
        self.__exit__(None, None, None)

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt: plain text as it is, a conversation through the chat template."""
        return self.tokenizer.encode(prompt)

    def generate(self, prompt: Prompt, **options: Any) -> Result:
        """Answer one prompt.

        Args:
            prompt: Plain text to continue, or messages ({"role": …, "content": …}) to answer.
            **options: Fields of `Options`.

        Raises:
            UserError: an empty prompt, or one that leaves no room for an answer.
        """
        return self.generate_batch([prompt], **options)[0]

    def generate_batch(self, prompts: Sequence[Prompt], **options: Any) -> list[Result]:
        """Answer up to `manifest.limits.max_batch` prompts together, in order."""
        answers, rounds = self._start(prompts, Options(**options))
        for turn in rounds:
            for lane in turn.lanes:
                answers[lane.lane].add(turn, lane)
        return [answer.result() for answer in answers]

    def stream(self, prompt: Prompt, **options: Any) -> Iterator[Chunk]:
        """Answer one prompt, a chunk per round."""
        (answer,), rounds = self._start([prompt], Options(**options))
        return (answer.chunk(turn) for turn in rounds)

    def _start(self, prompts: Sequence[Prompt], options: Options) -> tuple[list[_Answer], Iterator[Round]]:
        if options.block_size is not None:  # refused where it is not used too (plain decoding)
            check_block(options.block_size, self.manifest.drafter.block_size)
        stops = [options.stop] if isinstance(options.stop, str) else options.stop
        answers = [_Answer(self.encode(prompt), TextStream(self.tokenizer.decode, stops)) for prompt in prompts]
        with self._exclusive() as loop:
            rounds = loop.run(
                [answer.prompt for answer in answers],
                options.max_new_tokens,
                use_head=options.use_head,
                block=options.block_size if options.speculative else 1,
                reuse_prefix=options.reuse_prefix,
                cut=lambda lane, tokens: answers[lane].text.push(tokens),
            )
        return answers, self._one_by_one(rounds)

    def _one_by_one(self, rounds: Iterator[Round]) -> Iterator[Round]:
        while True:
            with self._exclusive():
                turn = next(rounds, None)
            if turn is None:
                return
            yield turn

    @contextmanager
    def _exclusive(self) -> Iterator[GreedyLoop]:
        """The loop, for one thread and for no longer than a round: its buffers and caches are shared."""
        loop = self.loop
        if not self._turn.acquire(blocking=False):
            raise RuntimeError("another thread is using this session; open one session per thread")
        try:
            yield loop
        finally:
            self._turn.release()


class _Answer:
    """Gathers one lane's rounds."""

    def __init__(self, prompt: list[int], text: TextStream):
        self.prompt, self.text, self.stats = prompt, text, Stats(len(prompt))
        self._tokens: list[int] = []
        self._drafted: list[bool] = []
        self._finish: str | None = None

    def add(self, turn: Round, lane: LaneRound) -> None:
        self.stats.add(turn, lane)
        self._tokens += lane.tokens
        self._drafted += [i < lane.drafts for i in range(len(lane.tokens))]
        if lane.retracted:
            del self._tokens[-lane.retracted :], self._drafted[-lane.retracted :]
        if lane.finish is not None:
            self._finish = lane.finish
            self.text.finish()

    def chunk(self, turn: Round) -> Chunk:
        self.add(turn, turn.lanes[0])
        pieces = tuple((piece.text, self._drafted[piece.token]) for piece in self.text.take())
        return Chunk(pieces, turn, self.result() if self._finish is not None else None)

    def result(self) -> Result:
        return Result(self.text.text, tuple(self._tokens), self._finish or "", self.stats)


def load(
    bundle: str | os.PathLike[str],
    *,
    backend: str | None = None,
    engines: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    verify: bool = True,
) -> Session:
    """Open a bundle for generation.

    Args:
        bundle: Bundle folder.
        backend: "ort", "tensorrt" or "tensorrt-rtx"; None: TensorRT where a GPU and engines are there, else ONNX Runtime.
        engines: Engine folder; None: the newest below the bundle that fits this machine.
        threads: Threads per call of ONNX Runtime; None takes every core this process may use.
        verify: Hash every file of the bundle first.

    Raises:
        UserError: the bundle is damaged or does not run here; exit code 4 for engines of another machine or bundle.
    """
    from lilicorr.runtime.backends import open_backend

    opened = open_bundle(os.fspath(bundle), verify=verify)
    target = opened.manifest.target
    tokenizer = ChatTokenizer(opened.folder, target.bos_token, target.eos_token)
    limits = opened.manifest.limits
    folder = None if engines is None else Path(engines)
    try:
        running = open_backend(opened, backend, engines=folder, threads=threads)
        try:
            return Session(running, opened.manifest, tokenizer)
        except BaseException:
            running.__exit__(None, None, None)
            raise
    except MemoryError as error:
        raise UserError(
            f"engines and caches for {limits.max_batch} lanes of {limits.max_context} tokens do not fit in memory: {error}",
            hint="lilicorr-export build … --max-context N --max-batch 1",
        ) from None
