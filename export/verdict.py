"""From what the rungs saw to a list of measures, each with its budget: the table people read and the verdict of `check`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lilicorr.export.budgets import Budget
from lilicorr.export.tensor_metrics import merge, merge_agreement

if TYPE_CHECKING:  # they compare with PyTorch, which `compare` does without
    from lilicorr.export.rung_loop import LoopRungs, TextCounts
    from lilicorr.export.rung_tensors import Decisions, TensorRungs

RUNGS = {1: "tensor", 2: "decision", 3: "round", 4: "text"}
_OWN_ARGMAX, _WALK = "next_ids unlike own logits' argmax", "walk unlike the reference walk"
_DECIDES = {  # judged decision -> the graph that takes it
    "next token: different": "target",
    "candidates: different": "drafter",
    _OWN_ARGMAX: "target",
    _WALK: "scorer",
}


@dataclass(frozen=True)
class Measure:
    """One number of the ladder. `budget` None: reported, not judged."""

    rung: int
    name: str
    value: float
    budget: float | None = None
    at_least: bool = False  # the budget is a minimum

    @property
    def passed(self) -> bool:
        if self.budget is None:
            return True
        return self.value >= self.budget if self.at_least else self.value <= self.budget

    def row(self) -> dict[str, Any]:
        """The measure as the summary of parity.json holds it."""
        sign = "≥" if self.at_least else "≤"
        return {
            "rung": f"{self.rung} {RUNGS[self.rung]}",
            "measure": self.name,
            "value": f"{self.value:.4g}",
            "budget": "" if self.budget is None else f"{sign} {self.budget:g}",
            "verdict": "" if self.budget is None else "ok" if self.passed else "MISSED",
        }


def measures(tensors: TensorRungs, loops: LoopRungs, budget: Budget) -> list[Measure]:
    """Every number of the four rungs, in order."""
    return [
        *_tensor_measures(tensors, budget),
        *_decision_measures(tensors),
        Measure(3, "rounds compared", loops.rounds),
        Measure(3, "same drafts", _share(loops.equal_drafts, loops.rounds), budget.rounds_equal, at_least=True),
        Measure(
            3, "same tokens emitted", _share(loops.equal_accepted, loops.rounds), budget.rounds_equal, at_least=True
        ),
        Measure(3, "acceptance length, PyTorch", _mean(loops.acceptance_torch)),
        Measure(3, "acceptance length, engine", _mean(loops.acceptance_engine)),
        Measure(3, "acceptance length, relative difference", loops.acceptance_rel, budget.acceptance_rel),
        *_text_measures("speculative = plain", loops.lossless, 0),
        *_text_measures("engine = PyTorch", loops.torch_text, None),
    ]


def failing_graphs(found: Sequence[Measure]) -> list[str]:
    """Graphs that missed a budget of rung 1 or 2, where a graph is compared by itself."""
    missed = [measure for measure in found if measure.rung <= 2 and not measure.passed]
    return sorted({measure.name.split(".")[0] if measure.rung == 1 else _DECIDES[measure.name] for measure in missed})


def details(tensors: TensorRungs, loops: LoopRungs) -> dict[str, Any]:
    """Every number behind the summary, for parity.json."""
    return {
        "tensors": {name: dataclasses.asdict(merge(parts)) for name, parts in tensors.differences.items()},
        "logits": dataclasses.asdict(merge_agreement(tensors.agreement)),
        "decisions": {
            name: dataclasses.asdict(getattr(tensors, name))
            for name in ("next_ids", "candidates", "own_argmax", "walks")
        },
        "loop": dataclasses.asdict(loops),
    }


def tensor_limit(name: str, rms: float, budget: Budget) -> float:
    """Largest absolute error of the output `name` ("graph.output"), whose reference has this root mean square."""
    absolute = _absolute(budget).get(name)
    return budget.tensor_scaled * rms if absolute is None else absolute


def _absolute(budget: Budget) -> dict[str, float]:
    """Outputs whose numbers mean something by themselves."""
    return {
        "target.logits": budget.logits_abs,
        "drafter.log_probs": budget.log_probs_abs,
        "scorer.start": budget.scores_abs,
        "scorer.pair": budget.scores_abs,
    }


def _tensor_measures(tensors: TensorRungs, budget: Budget) -> list[Measure]:
    absolute = _absolute(budget)
    found = []
    for name, parts in tensors.differences.items():
        whole = merge(parts)
        if name in absolute:
            found.append(Measure(1, f"{name} max abs", whole.max_abs, absolute[name]))
        else:
            found.append(Measure(1, f"{name} max abs / rms", whole.scaled, budget.tensor_scaled))
        found.append(Measure(1, f"{name} 1 - cosine", 1 - whole.cosine, budget.cosine_distance))
    logits = merge_agreement(tensors.agreement)
    return [
        *found,
        Measure(1, "target.logits mean KL", logits.mean_kl, budget.logits_kl),
        Measure(1, "target.logits same argmax", logits.argmax),
    ]


def _decision_measures(tensors: TensorRungs) -> list[Measure]:
    return [
        *_decided("next token", tensors.next_ids),
        *_decided("candidates", tensors.candidates),
        Measure(2, _OWN_ARGMAX, tensors.own_argmax.different, 0),
        Measure(2, _WALK, tensors.walks.different, 0),
    ]


def _decided(name: str, counts: Decisions) -> list[Measure]:
    return [
        Measure(2, f"{name}: compared", counts.total),
        Measure(2, f"{name}: ties", counts.ties),
        Measure(2, f"{name}: different", counts.different, 0),
    ]


def _text_measures(name: str, counts: TextCounts, budget: float | None) -> list[Measure]:
    return [
        Measure(4, f"{name}: identical answers", counts.identical),
        Measure(4, f"{name}: ties", len(counts.ties)),
        Measure(4, f"{name}: different", len(counts.different), budget),
    ]


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
