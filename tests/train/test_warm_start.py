"""Starting from a checkpoint, training the head alone, the states kept, newer recipe fields, TensorBoard."""

from __future__ import annotations

import json
import sys
import types

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from lilicorr.runtime.errors import UserError
from lilicorr.train import fit as module
from lilicorr.train.checkpoint import read_drafter
from lilicorr.train.fit import fit
from lilicorr.train.state import FILE
from lilicorr.train.trainer import Trainer
from tests.train.test_fit import _signals_restored, recipe  # noqa: F401 (fixtures)
from tests.train.test_recipe import RECIPE

REDUCED = RECIPE["drafter"] | {"draft_vocab_size": 40}


@pytest.fixture
def plain(recipe, tmp_path):  # noqa: F811
    """A finished plain drafter with a reduced vocabulary."""
    return fit(recipe("plain", steps=2, head={"kind": "none"}, drafter=REDUCED))


def test_a_new_head_on_a_frozen_drafter(recipe, plain):  # noqa: F811
    head = RECIPE["head"] | {"candidate_topk": 40}  # the gold token is always a candidate
    options = {"steps": 4, "drafter": REDUCED, "head": head, "warm_start": str(plain), "head_only": True}
    trainer = Trainer(module.read_recipe(recipe("head", **options)))
    before = {n: t.clone() for n, t in trainer.drafter.state_dict().items()}
    source = read_drafter(plain).float().state_dict()
    assert all(torch.equal(t, before[n]) for n, t in source.items())  # its vocabulary too
    while trainer.step < 4:
        trainer.train_step()
    changed = {n for n, t in trainer.drafter.state_dict().items() if not torch.equal(t, before[n])}
    assert {n.split(".")[0] for n in changed} == {"lilicorr"}
    assert len(changed) == len(dict(trainer.drafter.head.named_parameters()))


def test_a_whole_checkpoint_goes_on(recipe):  # noqa: F811
    first = fit(recipe("first", steps=2))
    trainer = Trainer(module.read_recipe(recipe("second", steps=2, seed=5, warm_start=str(first))))
    source = read_drafter(first).float().state_dict()
    assert all(torch.equal(t, source[n]) for n, t in trainer.drafter.state_dict().items())


@pytest.mark.parametrize("field", ["logit_scale", "vector_eps"])
def test_a_head_whose_scores_would_mean_something_else_is_refused(recipe, field):  # noqa: F811
    first = fit(recipe("first", steps=1))
    changed = RECIPE["head"] | {field: 0.5}
    with pytest.raises(UserError) as caught:
        Trainer(module.read_recipe(recipe("second", head=changed, warm_start=str(first))))
    assert f"head.{field}: {RECIPE['head'][field]!r} there, 0.5 here" in caught.value.what


def test_another_geometry_is_refused_all_at_once(recipe, plain):  # noqa: F811
    drafter = REDUCED | {"mask_token_id": 2, "target_layer_ids": [0, 1], "block_size": 5}
    with pytest.raises(UserError) as caught:
        Trainer(module.read_recipe(recipe("other", drafter=drafter, warm_start=str(plain))))
    for name in ("mask_token_id: 3 there, 2 here", "target_layer_ids", "block_size: 4 there, 5 here"):
        assert name in caught.value.what


def test_head_only_needs_a_head(recipe, plain):  # noqa: F811
    options = {"head": {"kind": "none"}, "drafter": REDUCED, "warm_start": str(plain), "head_only": True}
    with pytest.raises(UserError, match="the recipe has no head"):
        Trainer(module.read_recipe(recipe("head", **options)))


def test_older_states_are_kept_and_the_oldest_removed(recipe, tmp_path):  # noqa: F811
    fit(recipe(steps=6, save_every=1, keep_states=3))
    names = sorted(path.name for path in (tmp_path / "run").glob("*.safetensors"))
    assert names == ["state-000000004.safetensors", "state-000000005.safetensors", FILE]
    steps = []
    for name in names:
        with safe_open(tmp_path / "run" / name, "pt") as file:
            steps.append(file.metadata()["step"])
    assert steps == ["4", "5", "6"]


def full_disk(tensors, path, metadata=None):
    """Stands in for safetensors' `save_file`."""
    path.write_bytes(b"half a sta")
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("keep", [1, 3])
def test_a_full_disk_keeps_the_state_saved_before(recipe, tmp_path, monkeypatch, keep):  # noqa: F811
    trainer = Trainer(module.read_recipe(recipe(keep_states=keep)))
    trainer.save()
    before = (tmp_path / "run" / FILE).read_bytes()
    trainer.train_step()
    monkeypatch.setattr("safetensors.torch.save_file", full_disk)
    with pytest.raises(UserError, match=r"cannot be saved .* No space left") as caught:
        trainer.save()
    assert "what was saved before is untouched" in caught.value.what
    assert [path.name for path in (tmp_path / "run").glob("*state*")] == [FILE]
    assert (tmp_path / "run" / FILE).read_bytes() == before


def test_a_full_disk_while_features_are_kept(recipe, tmp_path, monkeypatch):  # noqa: F811
    trainer = Trainer(module.read_recipe(recipe()))
    monkeypatch.setattr("safetensors.torch.save_file", full_disk)
    with pytest.raises(UserError, match=r"target's features cannot be saved .* No space left"):
        trainer.train_step()
    assert not list(trainer.cache.folder.iterdir())
    assert trainer.step == 0


def test_a_state_saved_before_a_recipe_field_existed_resumes(recipe, tmp_path):  # noqa: F811
    fit(recipe(steps=2))
    path = tmp_path / "run" / FILE
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    saved = json.loads(metadata["recipe"])
    for name in ("warm_start", "head_only", "logit_rows"):
        del saved[name]
    del saved["objective"]["chain"], saved["head"]["kind"]
    del metadata["data"]  # what it was trained on was not stored either
    save_file(load_file(path), path, metadata=metadata | {"recipe": json.dumps(saved)})
    assert Trainer(module.read_recipe(recipe(steps=2))).step == 2
    with pytest.raises(UserError, match="objective"):
        Trainer(module.read_recipe(recipe(steps=2, objective={"chain": 1.0})))


def test_tensorboard_scalars(recipe, monkeypatch):  # noqa: F811
    written = []

    class SummaryWriter:
        def __init__(self, folder):
            self.folder = folder

        def add_scalar(self, name, value, step):
            written.append((name, step))

        def flush(self):
            pass

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", types.SimpleNamespace(SummaryWriter=SummaryWriter))
    fit(recipe(steps=2, tensorboard=True))
    assert {("loss", 2), ("ce", 2), ("lr", 2)} <= set(written)


def test_tensorboard_files_hold_the_log(recipe, tmp_path):  # noqa: F811
    """Read back from the event file: every logged value at its step."""
    pytest.importorskip("tensorboard", reason="needs the tensorboard package")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    fit(recipe(steps=2, tensorboard=True))
    (line,) = map(json.loads, (tmp_path / "run" / "log.jsonl").read_text().splitlines())
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == set(line) - {"step"}
    for name in events.Tags()["scalars"]:
        (event,) = events.Scalars(name)
        assert event.step == 2
        assert event.value == pytest.approx(line[name], rel=1e-5, abs=1e-5)


def test_tensorboard_that_is_not_installed(recipe, monkeypatch):  # noqa: F811
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError) as caught:
        fit(recipe(tensorboard=True))
    assert caught.value.hint == "pip install tensorboard"
