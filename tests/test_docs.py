"""The documents say what is so: every module is listed, and README's commands, options, make targets and links exist."""

import importlib
import importlib.util
import re
import shlex
from pathlib import Path

import click
import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
GROUPS = {"lilicorr-train": "train", "lilicorr-export": "export", "lilicorr-run": "runtime"}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def readme_lines(start):
    blocks = re.findall(r"^```sh\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.startswith(start)]


def test_structure_is_current():
    spec = importlib.util.spec_from_file_location("structure", ROOT / "scripts" / "structure.py")
    structure = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(structure)
    assert (ROOT / "docs" / "structure.md").read_text(encoding="utf-8") == structure.render(), "run `make docs`"


@pytest.mark.parametrize("line", readme_lines("lilicorr-"))
def test_commands_of_the_readme_parse(line):
    name, verb, *args = shlex.split(line, comments=True)
    group = importlib.import_module(f"lilicorr.{GROUPS[name]}.cli").main
    assert verb in group.commands, f"{name} has no `{verb}`"
    command = group.commands[verb]
    command.make_context(verb, args, parent=click.Context(group))  # raises on an unknown or missing option


def test_every_command_is_in_the_readme():
    documented = {tuple(shlex.split(line)[:2]) for line in readme_lines("lilicorr-")}
    for name, folder in GROUPS.items():
        group = importlib.import_module(f"lilicorr.{folder}.cli").main
        assert {(name, verb) for verb in group.commands} <= documented


def test_make_targets_of_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in {shlex.split(line)[1] for line in readme_lines("make ")}:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), f"Makefile has no `{target}`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        if "://" not in link:
            assert (page.parent / link).exists(), f"{page.name}: {link}"
