"""Profiles follow the bundle's limits and block size, and hold what the runtime's loop asks for."""

import dataclasses

from lilicorr.export.engine_profiles import profiles_for
from lilicorr.runtime.arena import capacity_for
from lilicorr.runtime.engine_set import Engine
from lilicorr.runtime.engine_shapes import profile_for
from lilicorr.runtime.manifest import Limits, read_manifest


def manifest_of(bundle, **limits):
    manifest = read_manifest(bundle)
    return dataclasses.replace(manifest, limits=dataclasses.replace(manifest.limits, **limits))


def test_target_profiles(tiny_bundle):
    prefill, verify = profiles_for(manifest_of(tiny_bundle, max_context=400, max_batch=3, prefill_chunk=64), "target")
    assert (prefill.name, verify.name) == ("prefill", "verify")
    tokens = [dataclasses.astuple(profile.shapes["tokens"]) for profile in (prefill, verify)]
    assert tokens == [((1, 1), (1, 64), (3, 64)), ((1, 1), (1, 5), (3, 5))]  # the block is 5
    cache = verify.shapes["k_cache_0"]
    assert (cache.min, cache.opt, cache.max) == ((1, 2, 1, 8), (1, 2, 128, 8), (3, 2, 400, 8))
    assert len(verify.shapes) == 2 + 2 * 4  # tokens, lengths, K and V of four layers


def test_the_scorer_has_one_profile_without_widths(tiny_bundle):
    (verify,) = profiles_for(manifest_of(tiny_bundle), "scorer")
    assert verify.shapes["candidate_ids"].max == (4, 4, 4)


def test_a_chunk_below_the_block_still_serves_a_block(tiny_bundle):
    prefill, _ = profiles_for(manifest_of(tiny_bundle, prefill_chunk=2), "target")
    assert prefill.shapes["tokens"].max == (4, 5)


def test_every_shape_of_the_loop_is_allowed(tiny_bundle):
    limits = Limits(max_context=400, max_batch=3, prefill_chunk=64)
    manifest = manifest_of(tiny_bundle, **dataclasses.asdict(limits))
    engine = Engine("target.engine", "", 0, profiles_for(manifest, "target"), {})
    dynamic = engine.profiles[0].shapes
    for lanes in (1, 3):
        for width in (1, 5, 63, 64):
            for rows in (0, 1, 64, 65, 399, 400):
                capacity = capacity_for(rows, limits.max_context)
                shapes = {name: (lanes, 2, capacity, 8) for name in dynamic if "cache" in name}
                shapes |= {"tokens": (lanes, width), "lengths": (lanes,)}
                index = profile_for("target", engine, shapes, "…")
                assert engine.profiles[index].name == ("verify" if width <= 5 else "prefill")
