"""Who answers the prompts that a drafter is trained on: the target in this process, or a server that speaks the OpenAI protocol.

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
from lilicorr.runtime.prompts import Prompt

ATTEMPTS = 4  # of one request, while the server is unreachable or overloaded
TIMEOUT_S = 600.0


class Response(NamedTuple):
    text: str
    finished: bool  # ended by itself within the limit
    tokens: int


class Responder(Protocol):
    """Answers the first user message of prompts."""

    def order(self, prompts: Sequence[Prompt]) -> tuple[list[Prompt], int]:
        """The prompts in an order that batches well, and how many were left out because they do not fit the context."""

    def answer(self, prompts: Sequence[Prompt]) -> list[Response | None]:
        """One response each; None where the prompt was refused."""


def prompt_seed(seed: int, prompt: Prompt) -> int:
    """A seed of its own for every prompt, whatever it is batched with."""
    return int.from_bytes(hashlib.sha256(f"{seed} {prompt.turns[0]}".encode()).digest()[:4], "big") >> 1


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

    def _encode(self, prompt: Prompt) -> list[int]:
        from lilicorr.train.data import encode_question

        return encode_question(self.tokenizer, prompt.turns[0])

    def order(self, prompts: Sequence[Prompt]) -> tuple[list[Prompt], int]:
        room = self.model.config.max_position_embeddings - self.max_new_tokens
        lengths = [(len(self._encode(prompt)), prompt) for prompt in prompts]
        fitting = sorted((item for item in lengths if item[0] <= room), key=lambda item: item[0])
        return [prompt for _, prompt in fitting], len(lengths) - len(fitting)

    def answer(self, prompts: Sequence[Prompt]) -> list[Response | None]:
        from lilicorr.train import generate

        ids = [self._encode(prompt) for prompt in prompts]
        if self.temperature:
            answers = generate.sampled_batch(
                self.model,
                ids,
                max_new_tokens=self.max_new_tokens,
                stop_ids=self.stop_ids,
                temperature=self.temperature,
                seeds=[prompt_seed(self.seed, prompt) for prompt in prompts],
            )
        else:
            answers = generate.greedy_batch(self.model, ids, max_new_tokens=self.max_new_tokens, stop_ids=self.stop_ids)
        return [
            Response(self.tokenizer.decode(answer, skip_special_tokens=True), answer[-1] in self.stop_ids, len(answer))
            for answer in answers
        ]


class Endpoint:
    """An OpenAI-compatible server at `url` (with its `/v1`), serving the target as `model`."""

    def __init__(self, url: str, model: str, *, max_new_tokens: int, temperature: float, seed: int):
        self.url, self.model = url.rstrip("/"), model
        self.max_new_tokens, self.temperature, self.seed = max_new_tokens, temperature, seed

    def order(self, prompts: Sequence[Prompt]) -> tuple[list[Prompt], int]:
        return list(prompts), 0

    def answer(self, prompts: Sequence[Prompt]) -> list[Response | None]:
        """As many requests at a time as there are prompts. A prompt the server refuses (HTTP 400: too long) is left out.

        Raises:
            UserError: the server cannot be reached, refuses every prompt, or answers something else.
        """
        with ThreadPoolExecutor(len(prompts)) as pool:
            results = list(pool.map(self._ask, prompts))
        refusals = [result for result in results if isinstance(result, str)]
        if len(refusals) == len(prompts):
            raise UserError(
                f"`{self.url}` refuses every prompt: {refusals[0]}", hint="check --model and the server's log"
            )
        return [None if isinstance(result, str) else result for result in results]

    def _ask(self, prompt: Prompt) -> Response | str:
        """The response, or the reason why the prompt was refused."""
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt.turns[0]}],
            "max_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "seed": prompt_seed(self.seed, prompt),
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
