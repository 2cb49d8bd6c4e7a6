"""The arena whose graphs write into it: same memory in and out, a commit that only counts, room for every row of a call."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from lilicorr.runtime.contract import expected_interfaces, native_rows
from lilicorr.runtime.in_place_arena import InPlaceArena, arena_for
from lilicorr.runtime.manifest import Cache
from tests.runtime.fakes import FakeBackend, tiny_manifest

CACHE = Cache(layers=2, kv_heads=3, head_dim=4, dtype="float32")
NATIVE = dataclasses.replace(tiny_manifest(max_context=40, prefill_chunk=8, block_size=5), attention="native")


def arena(rows=10, capacity=16):
    made = InPlaceArena(FakeBackend(), CACHE, lanes=3, rows=rows, capacity=capacity)
    made.reset(3)
    return made


def write(arena, width, value):
    """What a graph does: `width` rows of every lane from its length on."""
    for cache in arena.fresh(width).values():
        for lane, start in enumerate(arena.lengths):
            cache[lane, :, start : start + width] = value


def test_a_graph_writes_where_it_reads():
    caches, updated = arena().caches(), arena().fresh(5)
    assert list(updated) == [f"updated_{name}" for name in caches]
    one = arena()
    assert [a.ctypes.data for a in one.caches().values()] == [a.ctypes.data for a in one.fresh(5).values()]
    assert {a.shape for a in one.caches().values()} == {(3, 3, 16, 4)}  # C never changes


def test_a_commit_keeps_the_first_rows_and_the_next_call_writes_over_the_rest():
    one = arena()
    write(one, 5, 1)
    one.commit(5, np.array([5, 2, 0], np.int32))
    write(one, 3, 2)
    one.commit(3, np.array([1, 3, 3], np.int32))
    assert one.lengths.tolist() == [6, 5, 3]
    for cache in one.caches().values():
        rows = [cache[lane, 0, : one.lengths[lane], 0].tolist() for lane in range(3)]
        assert rows == [[1, 1, 1, 1, 1, 2], [1, 1, 2, 2, 2], [2, 2, 2]]


def test_dropping_a_lane_moves_the_others():
    one = arena()
    for lane in range(3):
        for cache in one.fresh(4).values():
            cache[lane, :, :4] = lane
    one.commit(4, np.array([4, 4, 4], np.int32))
    one.keep([0, 2])
    assert one.lengths.tolist() == [4, 4]
    assert all((c[0, :, :4] == 0).all() and (c[1, :, :4] == 2).all() for c in one.caches().values())
    assert one.capacity == 16


def test_more_rows_than_the_context_are_a_defect():
    one = arena(rows=10)
    one.commit(5, np.array([5, 5, 5], np.int32))
    with pytest.raises(ValueError, match="11 rows, the arena holds 10"):
        one.commit(6, np.array([6, 0, 0], np.int32))


def test_a_full_lane_has_room_for_the_widest_call_and_a_block():
    """The graphs write all rows of a call, and the drafter its block behind them, whatever will be committed."""
    limits, block = NATIVE.limits, NATIVE.drafter.block_size
    assert native_rows(NATIVE) == limits.max_context + limits.prefill_chunk + block
    short = dataclasses.replace(NATIVE, limits=dataclasses.replace(limits, prefill_chunk=2))
    assert native_rows(short) == limits.max_context + block + block


def test_the_form_of_the_bundle_decides():
    inputs, outputs = expected_interfaces(NATIVE)["target"]
    made = arena_for(FakeBackend(), NATIVE, NATIVE.target.cache, width=8)
    made.reset(2)
    named = {**made.caches(), **made.fresh(8)}
    shapes = {t.name: (2, *t.shape[1:]) for t in (*inputs, *outputs) if "cache" in t.name}
    assert {name: array.shape for name, array in named.items()} == shapes
    plain = arena_for(FakeBackend(), tiny_manifest(), NATIVE.target.cache, width=8)
    plain.reset(2)
    assert list(plain.fresh(1)) == ["new_k_0", "new_v_0", "new_k_1", "new_v_1"]
