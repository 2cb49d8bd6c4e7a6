"""Evaluation: rounds equal the replay's for every head, numbers by hand, the cached continuations, the command and its picture."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from click.testing import CliRunner

from lilicorr.runtime.errors import UserError
from lilicorr.runtime.prompts import Prompt
from lilicorr.train import continuations as module
from lilicorr.train import evaluate as evaluate_module
from lilicorr.train.checkpoint import read_drafter, write_drafter
from lilicorr.train.cli import main
from lilicorr.train.config import DominoConfig, DSparkConfig
from lilicorr.train.continuations import Continuation, cache_file, continuations
from lilicorr.train.drafter import Drafter
from lilicorr.train.evaluate import Rounds, _walk, rounds_of, summary
from lilicorr.train.generate import sampled_batch
from lilicorr.train.replay import acceptance_on_continuation, draft
from lilicorr.train.target import load_target, target_features

PROMPTS = [Prompt("a", "x", ("the quick fox",)), Prompt("b", "y", ("jumps over a dog",)), Prompt("c", "x", ("who?",))]
HEADS = {
    "none": None,
    "lilicorr": ...,
    "domino": DominoConfig(8, 4, 1),
    "dspark": DSparkConfig(4, "rnn", True, True),
}


@pytest.fixture(scope="module")
def model(tiny_target):
    return load_target(tiny_target)


@pytest.fixture(scope="module")
def tokenizer(tiny_target):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_target)


def drafter_with(head, tiny_drafter) -> Drafter:
    drafter = read_drafter(tiny_drafter)
    if head is ...:
        return drafter
    torch.manual_seed(4)
    return Drafter(dataclasses.replace(drafter.config, head=head)).eval()


def planted(model, drafter, prompt, length):
    """A text that follows the drafter's own drafts but for every fifth token, so that rounds of all lengths occur."""
    text = [*prompt, 17]
    with torch.inference_mode():
        while len(text) < len(prompt) + length:
            ids = torch.tensor([text])
            context = drafter.context(target_features(model, ids, drafter.config.target_layer_ids)[0])
            wanted = 1 + len(text) * 7 % drafter.config.slots
            drafts = draft(model, drafter, text[-1], context, len(text) - 1, drafter.config.slots)
            text += [*drafts[:wanted], 33]
    return tuple(text[len(prompt) : len(prompt) + length])


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("use_head", [True, False])
def test_rounds_equal_the_replay(model, tiny_drafter, name, use_head):
    drafter = drafter_with(HEADS[name], tiny_drafter)
    prompt = (5, 77, 130, 9)
    item = Continuation("p", "", prompt, planted(model, drafter, prompt, 40))
    features, _ = target_features(model, torch.tensor([[*prompt, *item.tokens]]), drafter.config.target_layer_ids)
    found = rounds_of(model, drafter, item, features, max_new_tokens=100)[0 if use_head else 1]
    expected = acceptance_on_continuation(model, drafter, prompt, item.tokens, use_head=use_head)
    assert found.accepted == [r.accepted for r in expected.rounds]
    assert found.emitted == [r.emitted for r in expected.rounds]
    if use_head:
        assert len(set(found.accepted)) > 2  # the text does have rounds of several lengths
    if not use_head:
        assert found.argmax == found.accepted
    assert all(best >= own for own, best in zip(found.argmax, found.oracle, strict=True))


def test_a_continuation_of_one_token_has_no_round(model, tiny_drafter):
    item = Continuation("p", "", (5, 7), (9,))
    found = rounds_of(model, read_drafter(tiny_drafter), item, torch.zeros(1, 3, 64), max_new_tokens=1)
    assert found == (Rounds([], [], [], [], []),) * 2
    assert summary(found[:1])["acceptance_length"] is None


@pytest.mark.parametrize(
    ("room", "accepted", "offered"),
    [(0, [3, 1], [3, 1]), (1, [3, 2], [3, 2]), (9, [3, 2], [3, 3])],
    ids=["cut by the limit", "one token of room", "ended by itself"],
)
def test_the_last_round_offers_what_the_limit_leaves(room, accepted, offered):
    """Six tokens after the prefill's, three slots, every draft right: rounds of four and two tokens."""
    right = [min(3, 6 - at) for at in range(6)]
    found = _walk(right, right, right, 3, room)
    assert (found.accepted, found.offered, found.emitted) == (accepted, offered, [4, 2])


def test_summary_by_hand():
    one = Rounds(accepted=[2, 0, 1], offered=[3, 3, 1], emitted=[3, 1, 1], argmax=[1, 0, 1], oracle=[3, 2, 1])
    two = Rounds(accepted=[3], offered=[3], emitted=[4], argmax=[0], oracle=[3])
    assert summary([one, two, Rounds([], [], [], [], [])]) == {
        "texts": 2,
        "rounds": 4,
        "acceptance_length": pytest.approx((5 / 3 + 4) / 2),
        "slot_acceptance": [pytest.approx(3 / 4), pytest.approx(2 / 3), pytest.approx(1 / 3)],
        "accepted_prefix": 1.5,
        "top1_prefix": 0.5,
        "oracle_prefix": 2.25,
    }


def test_sampled_tokens_follow_the_targets_distribution(model):
    """4000 first tokens against softmax(logits / T), in five bins of about equal mass."""
    prompt, temperature, count = [5, 77, 130], 1.5, 4000
    drawn = sampled_batch(
        model, [prompt] * count, max_new_tokens=1, stop_ids=frozenset(), temperature=temperature, seeds=range(count)
    )
    with torch.inference_mode():
        p = (model(torch.tensor([prompt])).logits[0, -1].double() / temperature).softmax(-1)
    bins = (p.cumsum(-1) * 5).long().clamp_max(4)
    found = torch.bincount(bins[torch.tensor(drawn)[:, 0]], minlength=5) / count
    expected = torch.zeros(5, dtype=torch.float64).index_add_(0, bins, p)
    assert (found - expected).abs().max() < 4 * 0.5 / count**0.5  # four standard deviations at most


def test_acceptance_of_sampled_texts_is_the_standard_rules(model, tiny_drafter, monkeypatch):
    """A greedy draft d is accepted with probability p(d): the first round's drafts, after every possible anchor, by enumeration.

    The drafts are the target's own best tokens, so that acceptance is far from 0 and 1.
    """
    prompt, temperature, count = [5, 77, 130], 0.4, 1500
    texts = torch.tensor([[*prompt, anchor] for anchor in range(model.config.vocab_size)])
    drafts, reach = [], [torch.ones(len(texts), dtype=torch.float64)]
    with torch.inference_mode():
        p_anchor = (model(texts[:1, :-1]).logits[0, -1].double() / temperature).softmax(-1)
        for _ in range(2):
            p = (model(texts).logits[:, -1].double() / temperature).softmax(-1)
            best = p.argmax(-1, keepdim=True)
            reach.append(reach[-1] * p.gather(-1, best)[:, 0])
            drafts.append(best)
            texts = torch.cat([texts, best], dim=1)
    table = torch.cat([*drafts, torch.full_like(drafts[0], -2)], dim=1)  # the third slot is never right
    exact = [float(p_anchor @ r) for r in reach[1:]]

    drafter = drafter_with(None, tiny_drafter)
    drafter.config = dataclasses.replace(drafter.config, block_size=4)
    monkeypatch.setattr(evaluate_module, "_drafts", lambda m, d, ids, c, a: (table[ids[a]], table[ids[a]][..., None]))
    answers = sampled_batch(
        model, [prompt] * count, max_new_tokens=3, stop_ids=frozenset(), temperature=temperature, seeds=range(count)
    )
    features = torch.zeros(1, len(prompt) + 3, 64)
    items = [Continuation("", "", tuple(prompt), tuple(answer)) for answer in answers]
    first = [rounds_of(model, drafter, item, features, max_new_tokens=9)[0].accepted[0] for item in items]
    for slot, expected in enumerate(exact, 1):
        assert 0.1 < expected < 0.9
        deviation = (expected * (1 - expected) / count) ** 0.5
        assert abs(sum(n >= slot for n in first) / count - expected) < 4 * deviation


def test_a_sampled_answer_does_not_depend_on_its_batch(model):
    def sample(prompts, seeds):
        return sampled_batch(model, prompts, max_new_tokens=6, stop_ids=frozenset(), temperature=1.0, seeds=seeds)

    together = sample([[5, 7], [9, 9, 9], [5, 7]], [1, 2, 3])
    assert together == [sample([[5, 7]], [1])[0], sample([[9, 9, 9]], [2])[0], sample([[5, 7]], [3])[0]]
    assert together[0] != together[2]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_continuations_are_made_once(model, tokenizer, tmp_path, monkeypatch, temperature):
    file = cache_file(tmp_path / "deep", "set", model, 5, temperature)
    arguments = {"max_new_tokens": 5, "temperature": temperature, "seeds": (0, 1) if temperature else (0,)}
    first = continuations(model, tokenizer, PROMPTS[:2], file, **arguments)
    assert [c.id for c in first] == (["a", "a", "b", "b"] if temperature else ["a", "b"])
    with file.open("ab") as out:
        out.write(b'{"prompt": [1')  # a killed run
    made = []
    name = "sampled_batch" if temperature else "greedy_batch"
    real = getattr(module, name)
    monkeypatch.setattr(module, name, lambda model, ids, **k: made.extend(ids) or real(model, ids, **k))
    again = continuations(model, tokenizer, PROMPTS, file, **arguments)
    assert again[: len(first)] == first
    assert set(made) == {again[-1].prompt_ids}
    made.clear()
    assert continuations(model, tokenizer, PROMPTS, file, **arguments) == again
    assert made == []
    file.write_bytes(file.read_bytes() + b"{\n")
    with pytest.raises(UserError, match="cannot be read"):
        continuations(model, tokenizer, PROMPTS, file, **arguments)


def test_a_prompt_that_the_template_refuses_is_named(model, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", "{{ raise_exception('no') }}")
    prompts = [Prompt("a", "x", ("who?",), where="p.jsonl:7")]
    with pytest.raises(UserError, match=r"p\.jsonl:7: the target's chat template refuses a chat of user: no"):
        continuations(model, tokenizer, prompts, tmp_path / "c.jsonl", max_new_tokens=3)


def test_a_system_message_is_before_the_question(model, tokenizer, tmp_path):
    prompts = [Prompt("a", "", ("who?", "not asked")), Prompt("b", "", ("who?",), "the quick fox")]
    plain, told = continuations(model, tokenizer, prompts, tmp_path / "c.jsonl", max_new_tokens=3)
    assert tokenizer.decode(plain.prompt_ids) == "<|im_start|>user\nwho?<|im_end|>\n<|im_start|>assistant\n"
    assert (
        tokenizer.decode(told.prompt_ids[: -len(plain.prompt_ids)]) == "<|im_start|>system\nthe quick fox<|im_end|>\n"
    )


def test_the_caches_name_tells_targets_lengths_and_temperatures_apart(model, tmp_path):
    names = {cache_file(tmp_path, "s", model, n, t) for n, t in ((5, 0.0), (6, 0.0), (5, 1.0))}
    assert len(names) == 3


def test_command_compares_checkpoints(tiny_target, tiny_drafter, tmp_path):
    write_drafter(drafter_with(HEADS["dspark"], tiny_drafter), tmp_path / "other")
    prompts = tmp_path / "set.jsonl"
    prompts.write_text(
        "".join(json.dumps({"id": p.id, "category": p.category, "turns": p.turns}) + "\n" for p in PROMPTS)
    )
    arguments = ["evaluate", "--checkpoint", str(tiny_drafter), "--checkpoint", str(tmp_path / "other"), "--json"]
    arguments += ["--target", str(tiny_target), "--prompts", str(prompts), "--max-new-tokens", "9"]
    picture = tmp_path / "compared.png"
    done = CliRunner().invoke(main, [*arguments, "--picture", str(picture)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    one, other = map(json.loads, done.stdout.strip().splitlines())
    assert (one["head"], other["head"]) == ("lilicorr", "dspark")
    assert one["texts"] == 3
    assert one["categories"].keys() == {"x", "y"}
    assert one["acceptance_length"] >= 1
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert len(list(tmp_path.glob("set.continuations-*.jsonl"))) == 1
    sampled = CliRunner().invoke(main, [*arguments, "--temperature", "1", "--seeds", "2"], catch_exceptions=False)
    assert json.loads(sampled.stdout.splitlines()[-1])["texts"] == 6


def test_a_picture_that_cannot_be_written(tmp_path):
    from lilicorr.train.picture import draw

    result = {
        "checkpoint": "a/b",
        "prompts": "s",
        "acceptance_length": 1.5,
        "slot_acceptance": [0.5],
        "temperature": 0.0,
    }
    with pytest.raises(UserError, match="cannot be written"):
        draw([result], tmp_path / "none" / "x.png")
    with pytest.raises(UserError, match="cannot be written"):
        draw([result], tmp_path / "x.docx")
