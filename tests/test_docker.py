"""The Dockerfiles as far as they can be checked without Docker: pinned bases, sources that are there and in the build's context."""

import fnmatch
import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "docker").glob("Dockerfile.*"))


def instructions(path):
    """(keyword, rest) of every instruction, continuation lines joined."""
    text = re.sub(r"^#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line.strip()]


def in_context(name):
    """Whether .dockerignore, read from top to bottom, lets `name` of the repository's root through."""
    kept = True
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#") and fnmatch.fnmatch(name, line.removeprefix("!")):
            kept = line.startswith("!")
    return kept


def test_there_are_two():
    assert [path.suffix for path in FILES] == [".jetson", ".l4"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_bases_are_pinned_and_sources_are_there(path):
    found = instructions(path)
    bases = [rest.split()[0] for keyword, rest in found if keyword == "FROM"]
    assert all(re.search(r":[a-z]?\d", base) for base in bases)
    copied = [shlex.split(rest)[:-1] for keyword, rest in found if keyword == "COPY" and "--from" not in rest]
    for name in (name for names in copied for name in names if name != "."):
        assert (ROOT / name).exists()
        assert in_context(name)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_layers_carry_no_package_lists(path):
    for keyword, rest in instructions(path):
        if keyword == "RUN" and "apt-get install" in rest:
            assert "--no-install-recommends" in rest
            assert rest.rstrip().endswith("rm -rf /var/lib/apt/lists/*")


def test_the_context_holds_the_package_and_nothing_large():
    for name in ("pyproject.toml", "README.md", "LICENSE", "train", "export", "runtime", "plugins_trt"):
        assert in_context(name), name
    for name in ("build", ".venv", ".git", "checkpoints"):
        assert not in_context(name), name
