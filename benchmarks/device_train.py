"""A short training run with large batches on this GPU, from the target's own responses to a falling loss.

    python benchmarks/device_train.py --target build/smollm2-135m-hf --out build/device_check/train

Answers prompts made from examples/prompts.jsonl with the target, then runs `lilicorr-train fit` with the recipe of SmolLM2-135M,
or, for another target, with a small drafter of its width. Last line of stdout: one JSON object.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "recipes/smollm2-135m.yaml"


@click.command()
@click.option("--target", type=click.Path(path_type=Path), required=True)
@click.option("--out", type=click.Path(path_type=Path), required=True)
@click.option("--prompts", default=256, show_default=True)
@click.option("--steps", default=60, show_default=True, help="at least 40: a loss is logged every 20")
@click.option("--sequences", default=32, show_default=True, help="per step")
@click.option("--anchors", default=128, show_default=True, help="per sequence")
def main(target: Path, out: Path, prompts: int, steps: int, sequences: int, anchors: int) -> None:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    questions, responses = out / "prompts.jsonl", out / "responses.jsonl"
    questions.write_text("".join(json.dumps(line) + "\n" for line in varied(prompts)), encoding="utf-8")
    options = [
        "--target",
        target,
        "--prompts",
        questions,
        "--out",
        responses,
        "--max-new-tokens",
        96,
        "--batch-size",
        64,
    ]
    answered = run("regenerate", *options)
    values = recipe(target) | {
        "target": str(target),
        "responses": [str(responses)],
        "out": str(out / "run"),
        "steps": steps,
        "sequences_per_step": sequences,
        "anchors_per_sequence": anchors,
        "save_every": 10 * steps,
    }
    (out / "recipe.yaml").write_text(json.dumps(values))  # JSON is YAML
    seconds = run("fit", out / "recipe.yaml")
    log = [json.loads(line) for line in (out / "run/log.jsonl").read_text(encoding="utf-8").splitlines()]
    losses = [line["loss"] for line in log if "loss" in line]
    report = {"regenerate_s": answered, "fit_s": seconds, "steps": steps, "sequences": sequences, "anchors": anchors}
    report["tokens_per_step"] = sequences * anchors * values["drafter"]["block_size"]
    click.echo(json.dumps(report | {"losses": losses}))
    if not losses[-1] < losses[0]:
        sys.exit(f"error: the loss did not fall: {losses}")


def varied(count: int) -> list[dict[str, Any]]:
    """`count` prompts: the examples again and again, each time under another number."""
    text = (ROOT / "examples/prompts.jsonl").read_text(encoding="utf-8")
    examples = [json.loads(line) for line in text.splitlines()]
    return [
        {"id": f"q{i}", "category": "check", "turns": [f"Question {i}. {examples[i % len(examples)]['turns'][0]}"]}
        for i in range(count)
    ]


def recipe(target: Path) -> dict[str, Any]:
    """The shipped recipe where the target is as wide as its own; otherwise one layer, four slots and a small head."""
    import yaml

    values = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    if config["hidden_size"] != 576:
        values["drafter"] = {
            "num_hidden_layers": 1,
            "num_attention_heads": config["num_attention_heads"],
            "num_key_value_heads": config["num_key_value_heads"],
            "head_dim": 8,
            "intermediate_size": 2 * config["hidden_size"],
            "block_size": 5,
            "mask_token_id": 3,
        }
        values["head"] |= {"candidate_topk": 4, "hidden_size": 24, "num_layers": 1, "num_heads": 2, "factor_dim": 16}
    return values


def run(verb: str, *arguments: Any) -> float:
    """Seconds of `lilicorr-train VERB …`; its failure is ours."""
    began = time.monotonic()
    command = [sys.executable, "-m", "lilicorr.train.cli", verb, *map(str, arguments)]
    if subprocess.run(command, stdout=sys.stderr).returncode != 0:
        sys.exit(f"error: lilicorr-train {verb} failed")
    return round(time.monotonic() - began, 1)


if __name__ == "__main__":
    main()
