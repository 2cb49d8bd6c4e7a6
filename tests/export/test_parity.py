"""The ladder passes on a true bundle and catches a wrong one, on the rung that is meant to catch it."""

import dataclasses
import hashlib
import json
import shutil

import numpy as np
import pytest

from lilicorr.export.bundle import build_bundle
from lilicorr.export.options import BuildOptions
from lilicorr.export.parity import CheckOptions, check_bundle
from lilicorr.export.progress import Progress
from lilicorr.export.report import text_from_report
from lilicorr.runtime.bundle import open_bundle
from lilicorr.runtime.errors import UserError
from lilicorr.runtime.manifest import FILE_NAME, FileRecord, read_manifest, seal
from lilicorr.runtime.steps import Steps
from tests.fixtures import write_drafter_folder, write_target

OPTIONS = CheckOptions(limit=3, max_new_tokens=12, threads=1)


def check(folder, options=OPTIONS):
    return check_bundle(folder, options, Progress(None))


def missed(report):
    return {row["rung"][0] for row in report["summary"] if row["verdict"] == "MISSED"}


@pytest.fixture(scope="module")
def checked(tiny_bundle, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checked") / "bundle"
    shutil.copytree(tiny_bundle, folder)
    return folder, check(folder)


def test_a_true_bundle_passes_every_rung(checked):
    _, report = checked
    assert report["passed"]
    assert report["bisect"] == []
    assert missed(report) == set()
    assert {row["rung"][0] for row in report["summary"]} == {"1", "2", "3", "4"}
    details = report["details"]
    assert set(details["tensors"]) >= {
        "target.logits",
        "target.features",
        "target.new_k",
        "drafter.hidden",
        "scorer.pair",
    }
    assert details["decisions"]["candidates"]["total"] == 3 * 3 * 4 * 4  # prompts, anchors, slots, candidates
    assert details["loop"]["lossless"]["identical"] == 3
    assert details["loop"]["rounds"] > 10


def test_the_report_is_stored_and_the_bundle_still_verifies(checked):
    folder, report = checked
    assert json.loads((folder / "parity.json").read_text()) == report
    assert "PASSED" in (folder / "parity.html").read_text()
    assert report["manifest_sha256"] == hashlib.sha256((folder / FILE_NAME).read_bytes()).hexdigest()
    open_bundle(folder)


@pytest.mark.parametrize("graph", ["target", "drafter", "scorer"])
def test_wrong_weights_fail_rung_one(own_bundle, graph):
    path = own_bundle / f"weights/{graph}.bin"
    weights = np.fromfile(path, np.float32)
    (weights * 1.05).tofile(path)
    manifest = read_manifest(own_bundle)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    files = [FileRecord(r.path, digest, r.bytes) if r.path == f"weights/{graph}.bin" else r for r in manifest.files]
    (own_bundle / FILE_NAME).write_text(dataclasses.replace(manifest, files=tuple(files)).to_json())
    report = check(own_bundle)
    assert not report["passed"]
    wrong = {
        row["measure"].split(".")[0]
        for row in report["summary"]
        if row["rung"][0] == "1" and row["verdict"] == "MISSED"
    }
    assert wrong == {graph}
    (command,) = report["bisect"]
    assert command == f"sh {own_bundle.resolve()}/bisect/{graph}/bisect.sh"
    assert command in text_from_report(report)
    assert (own_bundle / f"bisect/{graph}/call.json").stat().st_size > 0


def test_a_wrongly_served_drafter_fails_rung_three_only(own_bundle, monkeypatch):
    run = Steps._run_drafter

    def after_another_token(self, anchors):
        run(self, anchors + 1)
        self._backend.upload(self._view("anchor", self.lanes), anchors)  # the target reads the anchor from here

    monkeypatch.setattr(Steps, "_run_drafter", after_another_token)
    assert missed(check(own_bundle)) == {"3"}


def test_a_loop_that_changes_a_token_fails_rung_four(own_bundle, monkeypatch):
    speculate = Steps.speculate

    def wrong_in_blocks(self, anchors, block, **options):
        drafts, choices = speculate(self, anchors, block, **options)
        if block == self.block_size:
            choices = choices.copy()
            choices[:, 0] += 1
        return drafts, choices

    monkeypatch.setattr(Steps, "speculate", wrong_in_blocks)
    report = check(own_bundle)
    assert "4" in missed(report)
    assert report["details"]["loop"]["lossless"]["different"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tie", "options", "drafter"),
    [
        (False, {"block_size": 3}, {"draft_vocab_size": 100}),
        (True, {}, {"architectures": ["DFlashDraftModel"], "has_own_lm_head": True}),
    ],
    ids=["untied target, reduced vocabulary, shorter block", "no head, own lm_head"],
)
def test_other_kinds_of_pairs_pass_too(tmp_path, tie, options, drafter):
    folders = tmp_path / "target", tmp_path / "drafter"
    folders[0].mkdir()
    write_target(folders[0], tie=tie)
    write_drafter_folder(folders[1], **drafter)
    build_bundle(*folders, tmp_path / "bundle", BuildOptions(**options), Progress(None))
    report = check(tmp_path / "bundle")
    assert report["passed"], report["summary"]


def test_other_models_are_refused(own_bundle, own_pair):
    target, drafter = own_pair
    config = json.loads((drafter / "config.json").read_text())
    config["dflash_config"]["lilicorr_logit_scale"] = 4.0
    (drafter / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"head\.logit_scale: the bundle has 8\.0, the folder 4\.0"):
        check(own_bundle, dataclasses.replace(OPTIONS, target=target, drafter=drafter))


def test_a_bf16_bundle_is_refused_with_what_to_do(own_bundle):
    text = (own_bundle / FILE_NAME).read_text().replace('"fp32"', '"bf16"').replace('"float32"', '"bfloat16"')
    manifest = json.loads(text)
    for component in manifest["components"].values():
        for tensor in component["inputs"] + component["outputs"]:
            if tensor["name"] in ("logits", "log_probs", "start", "pair"):
                tensor["dtype"] = "float32"
    (own_bundle / FILE_NAME).write_text(json.dumps(seal(manifest)))
    with pytest.raises(UserError, match="bf16 bundle cannot be checked here") as caught:
        check(own_bundle)
    assert "fp32 or fp16" in caught.value.hint


def test_prompts_of_one_token_on_a_bundle_without_template(own_bundle, tmp_path):
    (own_bundle / "chat_template.jinja").unlink()
    manifest = read_manifest(own_bundle)
    files = tuple(record for record in manifest.files if record.path != "chat_template.jinja")
    (own_bundle / FILE_NAME).write_text(dataclasses.replace(manifest, files=files).to_json())
    (tmp_path / "p.jsonl").write_text('{"turns": ["a"]}\n')
    report = check(own_bundle, dataclasses.replace(OPTIONS, prompts=tmp_path / "p.jsonl", max_new_tokens=1))
    assert report["passed"]
    assert report["details"]["logits"]["rows"] == 1 + 5  # the answer, repeated to a block


def test_a_bad_prompt_file_is_refused_before_models_are_loaded(own_bundle, tmp_path):
    (tmp_path / "p.jsonl").write_text('{"turns": []}\n')
    with pytest.raises(UserError, match=r"p\.jsonl:1"):
        check(own_bundle, dataclasses.replace(OPTIONS, prompts=tmp_path / "p.jsonl"))
