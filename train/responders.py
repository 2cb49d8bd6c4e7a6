"""Who answers the chats that a drafter is trained on: the target in this process, or a server that speaks the OpenAI protocol.

A server (vLLM, SGLang, …) must run the same target with the same chat template; it is asked for chat completions, several at a
time. The key of `OPENAI_API_KEY` is sent when that variable is set.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Protocol

from lilicorr.runtime.errors import UserError
from lilicorr.runtime.tokenizer import Message

ATTEMPTS = 4  # of one request, while the server is unreachable or overloaded
TIMEOUT_S = 600.0


class Response(NamedTuple):
    text: str
    finished: bool  # ended by itself within the limit
    tokens: int


Chat = Sequence[Message]  # that ends with a message of the user


class Responder(Protocol):
    """Answers chats."""

    def check(self, chat: Chat) -> None:
        """Raises UserError: the target's template refuses it."""

    def order(self, chats: Sequence[Chat]) -> list[int]:
        """Their numbers in an order that batches well, without those that do not fit the context."""

    def answer(self, chats: Sequence[Chat]) -> list[Response | None]:
        """One response each; None where a chat does not fit the context, or is refused for what was answered in it."""


def chat_seed(seed: int, chat: Chat) -> int:
    """A seed of its own for every chat, whatever it is batched with."""
    text = " ".join([str(seed), *(message["content"] for message in chat)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


class LocalTarget:
    """The target at `folder`, with transformers.

    Raises:
        UserError: the folder cannot be loaded.
    """

    def __init__(self, folder: Path, *, max_new_tokens: int, temperature: float, seed: int):
        from transformers import AutoTokenizer

        from lilicorr.train.target import load_target, stop_token_ids

        self.model = load_target(folder)
        self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self.stop_ids = stop_token_ids(self.model, self.tokenizer)
        self.max_new_tokens, self.temperature, self.seed = max_new_tokens, temperature, seed
        self.room = self.model.config.max_position_embeddings - max_new_tokens  # for a chat, in tokens

    def _encode(self, chat: Chat) -> list[int]:
        from lilicorr.train.chat import encode_chat

        return encode_chat(self.tokenizer, chat)

    def check(self, chat: Chat) -> None:
        self._encode(chat)

    def order(self, chats: Sequence[Chat]) -> list[int]:
        lengths = [len(self._encode(chat)) for chat in chats]
        return sorted((i for i, length in enumerate(lengths) if length <= self.room), key=lengths.__getitem__)

    def answer(self, chats: Sequence[Chat]) -> list[Response | None]:
        ids = {i: found for i, chat in enumerate(chats) if (found := self._fitting(chat)) is not None}
        responses: list[Response | None] = [None] * len(chats)
        if ids:
            answers = self._decode([*ids.values()], [chats[i] for i in ids])
            for i, answer in zip(ids, answers, strict=True):
                text = self.tokenizer.decode(answer, skip_special_tokens=True)
                responses[i] = Response(text, answer[-1] in self.stop_ids, len(answer))
        return responses

    def _fitting(self, chat: Chat) -> list[int] | None:
        """Its ids, where `answer` can answer it. Templates can refuse what was answered, like an empty text."""
        try:
            ids = self._encode(chat)
        except UserError:
            return None
        return ids if len(ids) <= self.room else None

    def _decode(self, prompts: Sequence[Sequence[int]], chats: Sequence[Chat]) -> list[list[int]]:
        from lilicorr.train import generate

        if not self.temperature:
            return generate.greedy_batch(
                self.model, prompts, max_new_tokens=self.max_new_tokens, stop_ids=self.stop_ids
            )
        return generate.sampled_batch(
            self.model,
            prompts,
            max_new_tokens=self.max_new_tokens,
            stop_ids=self.stop_ids,
            temperature=self.temperature,
            seeds=[chat_seed(self.seed, chat) for chat in chats],
        )


class Endpoint:
    """An OpenAI-compatible server at `url` (with its `/v1`), serving the target as `model`."""

    def __init__(self, url: str, model: str, *, max_new_tokens: int, temperature: float, seed: int):
        self.url, self.model = url.rstrip("/"), model
        self.max_new_tokens, self.temperature, self.seed = max_new_tokens, temperature, seed

    def check(self, chat: Chat) -> None:
        """The server knows its template: it refuses with HTTP 400."""

    def order(self, chats: Sequence[Chat]) -> list[int]:
        return [*range(len(chats))]

    def answer(self, chats: Sequence[Chat]) -> list[Response | None]:
        """As many requests at a time as there are chats. A chat the server refuses (HTTP 400: too long) is left out.

        Raises:
            UserError: the server cannot be reached, refuses every first turn, or answers something else.
        """
        with ThreadPoolExecutor(len(chats)) as pool:
            results = list(pool.map(self._ask, chats))
        refusals = [result for result in results if isinstance(result, str)]
        answered_before = any(message["role"] == "assistant" for chat in chats for message in chat)
        if len(refusals) == len(chats) and not answered_before:
            raise UserError(
                f"`{self.url}` refuses every prompt: {refusals[0]}", hint="check --model and the server's log"
            )
        return [None if isinstance(result, str) else result for result in results]

    def _ask(self, chat: Chat) -> Response | str:
        """The response, or the reason why the chat was refused."""
        body = {
            "model": self.model,
            "messages": list(chat),
            "max_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "seed": chat_seed(self.seed, chat),
        }
        headers = {"Content-Type": "application/json"}
        if os.environ.get("OPENAI_API_KEY"):
            headers["Authorization"] = f"Bearer {os.environ['OPENAI_API_KEY']}"
        request = urllib.request.Request(f"{self.url}/chat/completions", json.dumps(body).encode(), headers)
        problem = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(2.0**attempt / 4)
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
                    data = json.load(reply)
                choice = data["choices"][0]
                tokens = (data.get("usage") or {}).get("completion_tokens", 0)
                return Response(choice["message"]["content"] or "", choice["finish_reason"] == "stop", tokens)
            except urllib.error.HTTPError as error:
                problem = f"HTTP {error.code}: {error.read().decode(errors='replace')[:300]}"
                if error.code == 400:
                    return problem
                if error.code < 500 and error.code != 429:
                    break
            except (ValueError, KeyError, IndexError, TypeError) as error:
                problem = f"not a chat completion: {error!r}"
                break
            except OSError as error:
                problem = str(error)
        raise UserError(
            f"`{self.url}/chat/completions` does not answer: {problem}", hint="check --endpoint and the server"
        )
