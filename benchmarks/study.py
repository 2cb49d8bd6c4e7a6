"""The study of docs/study.md: methods and ablations from one start on one budget, then their acceptance length on prompt files.

python benchmarks/study.py start checkpoints/smollm2-135m      # the common backbone, its head taken off
python benchmarks/study.py train                               # every run not made yet; several of these share the work
python benchmarks/study.py evaluate PROMPTS.jsonl …            # build/study/results.json, then docs/study.json
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import click

SEEDS = (42, 43, 44)
ROOT = Path("build/study")
RECIPE = "recipes/study.yaml"
LILICORR = (
    "head={enabled: true, candidate_topk: 8, hidden_size: 192, num_layers: 2, num_heads: 4, mlp_ratio: 2.0, factor_dim: 192, "
    "vector_eps: 1.0e-4, logit_scale: 8.0}"
)
CHAINS = ["objective.chain=1", "objective.head_chain=2"]
SOFT_HEAD = ["objective.head_soft=1", "objective.head_ce=0", "objective.head_penalty=0"]
METHODS: dict[str, list[str]] = {
    "dflash": [],
    "lilicorr": [LILICORR],
    "lilicorr_frozen": [LILICORR, "head_only=true"],
    "domino": ["head={kind: domino, gru_hidden_dim: 192, emb_dim: 64, shift_label: false}"],
    "dspark": ["head={kind: dspark, markov_rank: 64, markov_head_type: gated, shift_label: false}"],
    "lilicorr_soft_chain": [LILICORR, *SOFT_HEAD, *CHAINS],
}
# One seed and half the steps each, to be compared with `lilicorr_half` on held-out sequences; those of the head alone are in
# head_ablation.py.
ABLATIONS: dict[str, list[str]] = {
    "lilicorr_half": [LILICORR],
    "first_error": [LILICORR, "objective.first_error=0.3", "objective.head_first_error=0.3"],
    "chain": [LILICORR, *CHAINS],
    "first_error_chain": [LILICORR, "objective.first_error=0.3", "objective.head_first_error=0.3", *CHAINS],
    "soft_head": [LILICORR, *SOFT_HEAD],
    "soft_labels": [LILICORR, "objective.soft=0.5"],
    "margin": [LILICORR, "objective.head_ce=0.125", "objective.head_margin=0.125"],
    "dpace": [LILICORR, "objective.dpace=0.5"],
    "few_sequences": [LILICORR, "sequences_per_step=2", "anchors_per_sequence=24"],
    "block_6": [LILICORR, "drafter.block_size=6", "anchors_per_sequence=16", "warm_start=build/study/start-6"],
    "block_4": [LILICORR, "drafter.block_size=4", "anchors_per_sequence=24", "warm_start=build/study/start-4"],
}


@dataclass(frozen=True)
class Run:
    name: str
    seed: int
    overrides: Sequence[str]

    @property
    def out(self) -> Path:
        return ROOT / f"{self.name}-{self.seed}"

    @property
    def drafter(self) -> Path:
        return self.out / "drafter"


def runs(seeds: int, steps: int, only: Sequence[str] = ()) -> Iterator[Run]:
    """Every method with every seed, then the ablations."""
    methods = [Run(n, s, [*o, f"seed={s}", f"steps={steps}"]) for s in SEEDS[:seeds] for n, o in METHODS.items()]
    ablations = [Run(n, SEEDS[0], [*o, f"seed={SEEDS[0]}", f"steps={steps // 2}"]) for n, o in ABLATIONS.items()]
    for run in [*methods, *ablations]:
        if not only or run.name in only:
            yield run


@click.group()
def study() -> None:
    pass


@study.command()
@click.argument("checkpoint", type=click.Path(exists=True))
def start(checkpoint: str) -> None:
    """Write the backbone of CHECKPOINT, without its head, for every block size: its weights serve any."""
    from lilicorr.train.checkpoint import read_drafter, write_drafter
    from lilicorr.train.drafter import Drafter

    source = read_drafter(checkpoint)
    for block_size in (8, 6, 4):
        config = dataclasses.replace(source.config, head=None, block_size=block_size)
        backbone = Drafter(config).to(next(source.parameters()).dtype)
        names = backbone.state_dict().keys()
        backbone.load_state_dict({name: t for name, t in source.state_dict().items() if name in names})
        write_drafter(backbone, ROOT / f"start-{block_size}")


@study.command()
@click.option("--seeds", default=2, show_default=True)
@click.option("--steps", default=500, show_default=True, help="Of a method; an ablation makes half as many.")
@click.option("--only", multiple=True, help="Names of runs; all of them otherwise.")
def train(seeds: int, steps: int, only: tuple[str, ...]) -> None:
    """Train what is missing."""
    for run in runs(seeds, steps, only):
        run.out.mkdir(parents=True, exist_ok=True)
        with (run.out / "claim").open("w") as claim:
            try:
                fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)  # let go of when this process ends, however it ends
            except BlockingIOError:
                continue
            if run.drafter.exists():
                continue
            print(f"{run.out.name}: {' '.join(run.overrides)}", file=sys.stderr, flush=True)
            overrides = [part for o in (f"out={run.out}", *run.overrides) for part in ("--set", o)]
            subprocess.run([sys.executable, "-m", "lilicorr.train.cli", "fit", RECIPE, *overrides], check=True)


@study.command()
@click.argument("prompts", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--count", default=12, show_default=True, help="Prompts of each file.")
def held_out(prompts: tuple[Path, ...], count: int) -> None:
    """Gather training prompts that no run has seen, to judge ablations by."""
    from lilicorr.train.data import is_held_out
    from lilicorr.train.recipe import read_recipe

    share = read_recipe(RECIPE).held_out
    kept: list[str] = []
    for file in prompts:
        with file.open(encoding="utf-8") as lines:
            kept += islice((line for line in lines if is_held_out(json.loads(line)["id"], share)), count)
    (ROOT / "held-out.jsonl").write_text("".join(kept), encoding="utf-8")


@study.command()
@click.argument("prompts", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--ablations", is_flag=True, help="Those, instead of the methods.")
@click.option("--max-new-tokens", default=128, show_default=True)
@click.option("--limit", default=20, show_default=True, help="Prompts of each file.")
@click.option("--temperature", default=0.0, show_default=True)
@click.option("--out", default=str(ROOT / "results.json"), show_default=True)
def evaluate(
    prompts: tuple[Path, ...], ablations: bool, max_new_tokens: int, limit: int, temperature: float, out: str
) -> None:
    """Replay every finished run of a method (or ablation) on PROMPTS."""
    from lilicorr.train.evaluate import evaluate as replay

    done = sorted(ROOT.glob("*-[0-9]*/drafter"))
    names = ABLATIONS if ablations else METHODS
    done = [folder for folder in done if folder.parent.name.rpartition("-")[0] in names]
    results = replay(
        done,
        Path("build/smollm2-135m-hf"),
        prompts,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        limit=limit,
        cache=ROOT / "continuations",
    )
    Path(out).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


@study.command()
@click.argument("greedy", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--t1", multiple=True, type=click.Path(exists=True, path_type=Path), help="Results at temperature 1.")
def report(greedy: tuple[Path, ...], t1: tuple[Path, ...]) -> None:
    """docs/study.json and docs/study.png: the mean of the seeds, per method and set; the tables in Markdown."""
    from lilicorr.train.picture import draw

    means = {"greedy": seed_means(greedy), "t1": seed_means(t1)}
    draw(means["greedy"], Path("docs/study.png"))
    table: dict[str, dict[str, dict[str, float]]] = {}
    for name, results in means.items():
        table[name] = defaultdict(dict)
        for result in results:
            table[name][result["checkpoint"]][result["prompts"]] = round(result["acceptance_length"], 4)
        click.echo(f"\n{name}\n\n{markdown(table[name])}")
    Path("docs/study.json").write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


def seed_means(files: Sequence[Path]) -> list[dict[str, Any]]:
    """Results of `evaluate` with the method's name for a checkpoint and the mean over its seeds for every number."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for result in (r for file in files for r in json.loads(file.read_text(encoding="utf-8"))):
        groups[Path(result["checkpoint"]).parent.name.rpartition("-")[0], result["prompts"]].append(result)
    return [
        {
            "checkpoint": method,
            "prompts": prompts,
            "temperature": results[0]["temperature"],
            "acceptance_length": fmean(r["acceptance_length"] for r in results),
            "slot_acceptance": [fmean(slot) for slot in zip(*(r["slot_acceptance"] for r in results), strict=False)],
        }
        for (method, prompts), results in sorted(
            groups.items(), key=lambda item: [*METHODS, *ABLATIONS].index(item[0][0])
        )
    ]


def markdown(table: dict[str, dict[str, float]]) -> str:
    """One row per set, one column per method, and the mean; ratios to `dflash` in brackets."""
    methods = [*table]
    sets = [*dict.fromkeys(name for values in table.values() for name in values)]
    rows = {name: [table[m][name] for m in methods] for name in sets}
    rows["mean"] = [fmean(table[m].values()) for m in methods]
    base = methods.index("dflash") if "dflash" in methods else 0
    lines = [f"| | {' | '.join(methods)} |", "|---" * (len(methods) + 1) + "|"]
    lines += [
        f"| {name} | {' | '.join(f'{v:.3f} ({v / values[base]:.3f})' for v in values)} |"
        for name, values in rows.items()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    study()
