"""Fixtures shared by all test folders, and one thread per library: the tests are small and machines are shared."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from tests.fixtures import own_bundle, own_pair, tiny_bundle, tiny_drafter, tiny_target

__all__ = ["own_bundle", "own_pair", "tiny_bundle", "tiny_drafter", "tiny_target"]
