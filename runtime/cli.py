"""`lilicorr-run`: generate, chat, bench, doctor. Parses, and leaves the work to the modules beside it.

The answer or the JSON goes to stdout, everything else to stderr. Heavy modules are imported inside the commands, so that
`--help` is instant.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from lilicorr.runtime.backends import BACKENDS, ORT
from lilicorr.runtime.commands import Group
from lilicorr.runtime.errors import EXIT_PARITY, EXIT_USER, UserError
from lilicorr.runtime.options import Options
from lilicorr.runtime.terminal import ask, show, sum_up, wants_color

if TYPE_CHECKING:
    from lilicorr.runtime.session import Session
    from lilicorr.runtime.tokenizer import Message


@click.group(cls=Group)
@click.version_option(package_name="lilicorr")
def main() -> None:
    """Run a bundle: the target's own text, sooner."""


def _engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """The bundle, and the options of every command that decodes."""
    for option in (
        click.option("--max-new-tokens", type=click.IntRange(1), default=Options.max_new_tokens, show_default=True),
        click.option(
            "--block-size",
            type=click.IntRange(2),
            help="Tokens verified per round; default: as many as pay, chosen every round.",
        ),
        click.option(
            "--verify/--no-verify", default=True, help="Hash the bundle's files before use.", show_default=True
        ),
        click.option("--threads", type=click.IntRange(1), help="Threads per call of ort; default: every core."),
        click.option(
            "--engines", type=click.Path(), help="Engine folder; default: the newest in BUNDLE/engines that fits."
        ),
        click.option(
            "--backend",
            type=click.Choice(BACKENDS),
            help="Default: TensorRT where a GPU and engines are there, else ONNX Runtime (ort).",
        ),
        click.argument("bundle", type=click.Path()),
    ):
        command = option(command)
    return command


def _answer_options(command: Callable[..., None]) -> Callable[..., None]:
    """Options of the commands that show an answer."""
    for option in (
        click.option("--color/--no-color", default=None, help="Colour accepted drafts; default: on a terminal."),
        click.option(
            "--draft",
            type=click.Choice(["head", "argmax"]),
            default="head",
            show_default=True,
            help="argmax: each slot's best candidate, without the head.",
        ),
        click.option("--speculative/--plain", default=True, help="--plain decodes token by token.", show_default=True),
        click.option("--stop", multiple=True, help="End the answer just before this text. Repeatable."),
        click.option("--system", help="System message; default: the template's own."),
    ):
        command = option(command)
    return _engine_options(command)


@main.command()
@_answer_options
@click.argument("prompt")
@click.option("--raw", is_flag=True, help="Continue PROMPT as plain text, without the chat template.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of streaming.")
def generate(
    bundle: str,
    prompt: str,
    raw: bool,
    as_json: bool,
    system: str | None,
    **rest: Any,
) -> None:
    """Answer PROMPT ("-" reads standard input). Accepted drafts are coloured."""
    from lilicorr.runtime.tokenizer import user_message

    if prompt == "-":
        prompt = sys.stdin.read() if sys.stdin else ""
    if not prompt.strip():
        raise UserError("the prompt is empty", hint='lilicorr-run generate BUNDLE "Why is the sky blue?"')
    with _open(bundle, rest) as session:
        color, options = _options(rest)
        query = prompt if raw else session.tokenizer.as_prompt([*_opening(system), user_message(prompt)])
        if as_json:
            result = session.generate(query, **options)
            answer = {"text": result.text, "token_ids": result.token_ids, "finish_reason": result.finish_reason}
            click.echo(json.dumps(answer | {"backend": session.backend} | result.stats.to_dict()))
        else:
            sum_up(show(session.stream(query, **options), color))


@main.command()
@_answer_options
def chat(bundle: str, system: str | None, **rest: Any) -> None:
    """Talk to BUNDLE. An empty line or Ctrl-D ends; /reset forgets the conversation."""
    from lilicorr.runtime.request import check_block
    from lilicorr.runtime.tokenizer import user_message

    with _open(bundle, rest) as session:
        color, options = _options(rest)
        served = session.manifest.drafter.block_size
        check_block(served if options["block_size"] is None else options["block_size"], served)
        messages = _opening(system)
        while line := ask():
            if line == "/reset":
                messages = _opening(system)
                continue
            messages.append(user_message(line))
            try:
                result = show(session.stream(messages, reuse_prefix=True, **options), color)
            except UserError as error:  # the conversation outgrew the context: say so and let the user go on
                click.echo(f"error: {error}\n\nhint: /reset", err=True)
                messages.pop()
                continue
            sum_up(result)
            messages.append({"role": "assistant", "content": result.text})


@main.command()
@_engine_options
@click.option(
    "--prompts", "prompt_file", required=True, type=click.Path(), help="JSON lines with `turns` or `messages`."
)
@click.option("--limit", type=click.IntRange(1), help="Only the first prompts.")
@click.option(
    "--compare-argmax", is_flag=True, help="Also draft without the head (its rounds choose their own blocks)."
)
@click.option("--json", "as_json", is_flag=True, help="Print only the JSON object; no table.")
def bench(
    bundle: str,
    max_new_tokens: int,
    block_size: int | None,
    prompt_file: str,
    limit: int | None,
    compare_argmax: bool,
    as_json: bool,
    **rest: Any,
) -> None:
    """Measure BUNDLE on a prompt file, speculative against plain. The last line of stdout is one JSON object.

    Exit code 3 when a speculative text differs from the plain one.
    """
    from lilicorr.runtime.bench import run_bench
    from lilicorr.runtime.bench_report import table
    from lilicorr.runtime.doctor import diagnose
    from lilicorr.runtime.ort import default_threads
    from lilicorr.runtime.prompts import read_prompts

    prompts = read_prompts(prompt_file, limit)
    threads = rest["threads"]
    with _open(bundle, rest) as session:
        backend = session.backend
        report = run_bench(
            session,
            prompts,
            max_new_tokens,
            block_size=block_size,
            compare_argmax=compare_argmax,
            progress=lambda line: click.echo(line, err=True),
        )
        notes = session.notes
    report |= {"backend": backend, "notes": notes}
    report |= {"threads": (threads or default_threads()) if backend == ORT else None}
    report |= {"max_new_tokens": max_new_tokens, "block_size": block_size, "machine": diagnose()}
    for note in notes:
        click.echo(f"note: {note}", err=True)
    if not as_json:
        click.echo(table(report), err=True)
    click.echo(json.dumps(report))
    if report["lossless"]["different"]:
        sys.exit(EXIT_PARITY)


@main.command()
@click.argument("bundle", required=False, type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(bundle: str | None, as_json: bool) -> None:
    """Describe this machine and installation, and check BUNDLE if given. Made for pasting into a report."""
    from lilicorr.runtime.doctor import as_text, diagnose

    facts = diagnose(bundle)
    click.echo(json.dumps(facts) if as_json else as_text(facts))
    if facts.get("bundle", {}).get("problem", "none") != "none":
        sys.exit(EXIT_USER)


def _open(bundle: str, rest: dict[str, Any]) -> Session:
    """Open the bundle as the options in `rest` say, and take them out."""
    from lilicorr.runtime.session import load

    return load(bundle, **{name: rest.pop(name) for name in ("backend", "engines", "threads", "verify")})


def _opening(system: str | None) -> list[Message]:
    return [{"role": "system", "content": system}] if system else []


def _options(rest: dict[str, Any]) -> tuple[bool, dict[str, Any]]:
    """Whether to colour, and the fields of `options.Options` that the command line sets."""
    color = rest.pop("color")
    use_head = rest.pop("draft") == "head"
    return wants_color() if color is None else color, {**rest, "use_head": use_head}
