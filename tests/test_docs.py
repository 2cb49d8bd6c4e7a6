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


def lines(text, start):
    """Lines of the shell blocks of `text` that begin with `start`, in a container or not."""
    blocks = re.findall(r"^```sh\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    commands = [re.sub(r"^docker run .* lilicorr:\w+ ", "", line) for block in blocks for line in block.splitlines()]
    return [command for command in commands if command.startswith(start)]


def all_lines(start):
    """The same of every page, each line once, with its page."""
    found = {line: page.name for page in PAGES for line in lines(page.read_text(encoding="utf-8"), start)}
    return [pytest.param(line, id=f"{page}: {line[:60]}") for line, page in found.items()]


def test_structure_is_current():
    spec = importlib.util.spec_from_file_location("structure", ROOT / "scripts" / "structure.py")
    structure = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(structure)
    assert (ROOT / "docs" / "structure.md").read_text(encoding="utf-8") == structure.render(), "run `make docs`"


@pytest.mark.parametrize("line", all_lines("lilicorr-"))
def test_commands_of_the_pages_parse(line):
    name, verb, *args = shlex.split(line, comments=True)
    group = importlib.import_module(f"lilicorr.{GROUPS[name]}.cli").main
    assert verb in group.commands, f"{name} has no `{verb}`"
    command = group.commands[verb]
    command.make_context(verb, args, parent=click.Context(group))  # raises on an unknown or missing option


def test_every_command_is_in_the_readme():
    documented = {tuple(shlex.split(line)[:2]) for line in lines(README, "lilicorr-")}
    for name, folder in GROUPS.items():
        group = importlib.import_module(f"lilicorr.{folder}.cli").main
        assert {(name, verb) for verb in group.commands} <= documented


@pytest.mark.parametrize("line", all_lines("make "))
def test_make_targets_of_the_pages_exist(line):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{shlex.split(line)[1]}:", makefile, flags=re.MULTILINE)


@pytest.mark.parametrize("line", [*all_lines("./"), *all_lines("python benchmarks/")])
def test_scripts_of_the_pages_exist(line):
    assert (ROOT / line.removeprefix("python ").split()[0]).is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        if "://" not in link:
            assert (page.parent / link).exists(), f"{page.name}: {link}"
