"""The arena against a plain list of rows per lane, in host memory and on a simulated GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lilicorr.runtime.arena import Arena, capacity_for
from lilicorr.runtime.cuda_device import CudaDevice
from lilicorr.runtime.device_memory import DeviceMemory
from lilicorr.runtime.manifest import Cache
from tests.runtime.fakes import FakeBackend
from tests.runtime.simulated_cuda import SimulatedDriver

CACHE = Cache(layers=2, kv_heads=3, head_dim=4, dtype="float32")  # rows of 16 bytes: planes on a GPU are padded


class OnDevice(DeviceMemory):
    def __init__(self) -> None:
        super().__init__(CudaDevice(SimulatedDriver()))

    def capacity_for(self, rows: int, limit: int) -> int:
        return capacity_for(rows, limit)


@pytest.fixture(params=[FakeBackend, OnDevice])
def backend(request: pytest.FixtureRequest) -> Any:
    return request.param()


def check(backend: Any, arena: Arena, lanes: list[list[np.ndarray]]) -> None:
    assert arena.lengths.tolist() == [len(rows) for rows in lanes]
    for plane, view in enumerate(arena.caches().values()):
        assert view.shape == (len(lanes), 3, arena.capacity, 4)
        (values,) = backend.download(view)
        assert np.isfinite(values).all()
        for lane, rows in enumerate(lanes):
            if rows:
                np.testing.assert_array_equal(values[lane, :, : len(rows)], np.stack([r[plane] for r in rows], axis=1))


@pytest.mark.parametrize("seed", range(4))
def test_random_ragged_commits(backend: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    arena = Arena(backend, CACHE, lanes=4, rows=333, width=40)
    arena.reset(4)
    lanes: list[list[np.ndarray]] = [[] for _ in range(4)]
    while len(lanes) > 1 or len(lanes[0]) < 300:
        width = int(rng.integers(1, 41))
        rows = rng.normal(size=(4, len(lanes), 3, width, 4)).astype(np.float32)
        for plane, view in enumerate(arena.fresh(width).values()):
            backend.upload(view, rows[plane])
        counts = np.array([rng.integers(0, min(width, 333 - len(lane)) + 1) for lane in lanes], dtype=np.int32)
        arena.commit(width, counts)
        for lane, count in enumerate(counts):
            lanes[lane] += [rows[:, lane, :, row] for row in range(count)]
        check(backend, arena, lanes)
        if len(lanes) > 1 and rng.random() < 0.1:
            kept = sorted(rng.choice(len(lanes), size=len(lanes) - 1, replace=False).tolist())
            arena.keep(kept)
            lanes = [lanes[i] for i in kept]
            check(backend, arena, lanes)
        if rng.random() < 0.1:
            rows_left = len(lanes[0]) // 2
            arena.truncate(0, rows_left)
            del lanes[0][rows_left:]


def test_tensors_share_the_one_allocation() -> None:
    backend = FakeBackend()
    arena = Arena(backend, CACHE, lanes=2, rows=128, width=8)
    arena.reset(2)
    before = {name: view.ctypes.data for name, view in arena.caches().items()}
    arena.fresh(8)["new_k_0"][...] = 1
    arena.commit(8, np.array([8, 3], dtype=np.int32))
    assert {name: view.ctypes.data for name, view in arena.caches().items()} == before
    assert all(view.flags.c_contiguous for view in arena.caches().values())


@pytest.mark.parametrize("lanes", [1, 2, 3])
@pytest.mark.parametrize("width", [1, 5, 16])
def test_tensors_on_a_gpu_are_contiguous_and_aligned(lanes: int, width: int) -> None:
    arena = Arena(OnDevice(), CACHE, lanes=3, rows=90, width=16)
    arena.reset(lanes)
    for view in (*arena.caches().values(), *arena.fresh(width).values()):
        assert view.is_contiguous
        assert view.address % 256 == 0


def test_one_lane_is_committed_in_one_copy() -> None:
    backend = OnDevice()
    arena = Arena(backend, CACHE, lanes=3, rows=90, width=16)
    arena.reset(3)
    made = []
    backend.device.copy = made.append
    arena.commit(5, np.array([2, 0, 5]))
    assert [(copy.width, copy.height, copy.depth) for copy in made] == [(2 * 16, 3, 4), (5 * 16, 3, 4)]


def test_names_of_layers(backend: Any) -> None:
    arena = Arena(backend, CACHE, lanes=1, rows=64, width=2)
    arena.reset(1)
    assert list(arena.caches()) == ["k_cache_0", "v_cache_0", "k_cache_1", "v_cache_1"]
    assert list(arena.fresh(2)) == ["new_k_0", "new_v_0", "new_k_1", "new_v_1"]


def test_limits(backend: Any) -> None:
    arena = Arena(backend, CACHE, lanes=2, rows=10, width=8)
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
