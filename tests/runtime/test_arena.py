"""The arena against a plain list of rows per lane."""

from __future__ import annotations

import numpy as np
import pytest

from lilicorr.runtime.arena import Arena, capacity_for
from lilicorr.runtime.manifest import Cache
from tests.runtime.fakes import FakeBackend

CACHE = Cache(layers=2, kv_heads=3, head_dim=4, dtype="float32")


def check(arena: Arena, lanes: list[list[np.ndarray]]) -> None:
    assert arena.lengths.tolist() == [len(rows) for rows in lanes]
    for plane, view in enumerate(arena.caches().values()):
        assert view.flags.c_contiguous
        assert view.shape == (len(lanes), 3, arena.capacity, 4)
        for lane, rows in enumerate(lanes):
            if rows:
                np.testing.assert_array_equal(view[lane, :, : len(rows)], np.stack([r[plane] for r in rows], axis=1))


@pytest.mark.parametrize("seed", range(4))
def test_random_ragged_commits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    arena = Arena(FakeBackend(), CACHE, lanes=4, rows=333, width=40)
    arena.reset(4)
    lanes: list[list[np.ndarray]] = [[] for _ in range(4)]
    while len(lanes) > 1 or len(lanes[0]) < 300:
        width = int(rng.integers(1, 41))
        rows = rng.normal(size=(4, len(lanes), 3, width, 4)).astype(np.float32)
        for plane, view in enumerate(arena.fresh(width).values()):
            view[...] = rows[plane]
        counts = np.array([rng.integers(0, min(width, 333 - len(lane)) + 1) for lane in lanes], dtype=np.int32)
        arena.commit(width, counts)
        for lane, count in enumerate(counts):
            lanes[lane] += [rows[:, lane, :, row] for row in range(count)]
        check(arena, lanes)
        if len(lanes) > 1 and rng.random() < 0.1:
            kept = sorted(rng.choice(len(lanes), size=len(lanes) - 1, replace=False).tolist())
            arena.keep(kept)
            lanes = [lanes[i] for i in kept]
            check(arena, lanes)
        if rng.random() < 0.1:
            rows_left = len(lanes[0]) // 2
            arena.truncate(0, rows_left)
            del lanes[0][rows_left:]


def test_views_share_the_one_allocation() -> None:
    arena = Arena(FakeBackend(), CACHE, lanes=2, rows=128, width=8)
    arena.reset(2)
    before = {name: view.ctypes.data for name, view in arena.caches().items()}
    arena.fresh(8)["new_k_0"][...] = 1
    arena.commit(8, np.array([8, 3], dtype=np.int32))
    assert {name: view.ctypes.data for name, view in arena.caches().items()} == before


def test_names_of_layers() -> None:
    arena = Arena(FakeBackend(), CACHE, lanes=1, rows=64, width=2)
    arena.reset(1)
    assert list(arena.caches()) == ["k_cache_0", "v_cache_0", "k_cache_1", "v_cache_1"]
    assert list(arena.fresh(2)) == ["new_k_0", "new_v_0", "new_k_1", "new_v_1"]


def test_limits() -> None:
    arena = Arena(FakeBackend(), CACHE, lanes=2, rows=10, width=8)
    with pytest.raises(ValueError, match="3 lanes"):
        arena.reset(3)
    arena.reset(1)
    arena.commit(8, np.array([8]))
    with pytest.raises(ValueError, match="11 rows, the arena holds 10"):
        arena.commit(8, np.array([3]))


def test_buckets_hold_the_rows_and_waste_at_most_a_quarter() -> None:
    for rows in range(1, 5000):
        capacity = capacity_for(rows, 8192)
        assert rows <= capacity <= max(64, rows + 64, rows * 1.25)
    assert capacity_for(0, 8192) == 64
    assert capacity_for(130, 150) == 150
    assert len({capacity_for(rows, 8192) for rows in range(8193)}) < 32
