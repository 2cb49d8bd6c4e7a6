"""The host build of csrc/walk.h against the torch reference: paths exactly, proposals to 1e-6."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lilicorr.plugins_trt import PluginError, host, host_walk
from lilicorr.train.walk import greedy_walk, sampled_walk

F32 = np.float32
BELOW_ONE = np.nextafter(F32(1), F32(0))
ADVERSARIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 1e-39, 1.0, np.nextafter(F32(1), F32(2)), 3e38, -3e38]
scores = st.sampled_from([float(F32(value)) for value in ADVERSARIAL]) | st.floats(-8, 8, width=32)


@st.composite
def lattices(draw):
    n, s, k = draw(st.integers(0, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 5))
    start = draw(hnp.arrays(F32, (n, k), elements=scores))
    return start, draw(hnp.arrays(F32, (n, s - 1, k, k), elements=scores))


@st.composite
def sampled_lattices(draw):
    start, pair = draw(lattices())
    shape = (len(start), pair.shape[1] + 1)
    temperatures = st.sampled_from([0.0, float(F32(1e-45)), 0.7, 1.0, float(F32(3e38))]) | st.floats(0, 4, width=32)
    uniforms = st.sampled_from([0.0, 0.5, float(BELOW_ONE)]) | st.floats(0, 1, width=32, exclude_max=True)
    return (
        start,
        pair,
        *(
            draw(hnp.arrays(F32, size, elements=values))
            for size, values in ((shape[0], temperatures), (shape, uniforms))
        ),
    )


def reference(*arrays):
    with np.errstate(all="ignore"):
        walk = greedy_walk if len(arrays) == 2 else sampled_walk
        return walk(*(torch.from_numpy(array) for array in arrays))


def random_lattice(seed, n, s, k):
    """Coarse scores, so that a third of the rows have a tie at the top, and every twentieth is not a number."""
    rng = np.random.default_rng(seed)
    draw = lambda *shape: np.where(rng.random(shape) < 0.05, np.nan, rng.integers(-k, k, shape) / 2).astype(F32)  # noqa: E731
    return draw(n, k), draw(n, s - 1, k, k)


def assert_sampled_like_reference(start, pair, temperature, uniforms):
    path, q = host_walk(start, pair, temperature, uniforms)
    n, s, k = q.shape
    # The rule, exactly: the path follows from q and the uniforms.
    for lane, slot in np.ndindex(n, s):
        sums = np.add.accumulate(q[lane, slot], dtype=F32)
        reached = np.flatnonzero(sums > uniforms[lane, slot])
        expected = reached[0] if len(reached) else np.flatnonzero(q[lane, slot])[-1]
        assert path[lane, slot] == expected
    # q of every visited row, each as a walk of one slot of its own.
    lanes = np.arange(n)[:, None]
    rows = np.concatenate([start[:, None], pair[lanes, np.arange(s - 1), path[:, :-1]]], axis=1).reshape(n * s, k)
    nothing = np.empty((n * s, 0, k, k), F32)
    choice, expected_q = reference(rows, nothing, np.repeat(temperature, s), uniforms.reshape(-1, 1))
    np.testing.assert_allclose(q.reshape(n * s, k), expected_q[:, 0].numpy(), rtol=0, atol=1e-6)
    # The same choice, except where u is so close to a sum that the last bit of exp decides.
    sums = np.cumsum(expected_q[:, 0].numpy(), axis=1)
    close = (np.abs(sums - uniforms.reshape(-1, 1)) < 1e-5).any(axis=1)
    assert (path.reshape(-1) == choice[:, 0].numpy())[~close].all()
    return path, q


@given(lattices())
@settings(max_examples=300, deadline=None)
def test_greedy_equals_the_reference_on_adversarial_scores(lattice):
    path, q = host_walk(*lattice)
    assert q is None
    assert path.dtype == np.int32
    np.testing.assert_array_equal(path, reference(*lattice).numpy())


@pytest.mark.parametrize("k", [1, 2, 3, 8, 31, 32])
@pytest.mark.parametrize("s", [1, 2, 7, 15, 63])
def test_greedy_equals_the_reference_over_all_sizes(s, k):
    lattice = random_lattice(seed=100 * s + k, n=4, s=s, k=k)
    np.testing.assert_array_equal(host_walk(*lattice)[0], reference(*lattice).numpy())


@given(sampled_lattices())
@settings(max_examples=300, deadline=None)
def test_sampled_equals_the_reference_on_adversarial_scores(case):
    assert_sampled_like_reference(*case)


@pytest.mark.parametrize("k", [1, 2, 8, 32])
@pytest.mark.parametrize("s", [1, 15, 63])
def test_sampled_equals_the_reference_over_all_sizes(s, k):
    start, pair = random_lattice(seed=s + k, n=4, s=s, k=k)
    rng = np.random.default_rng(s * k)
    temperature = np.array([0, 0.3, 1, 2], F32)
    path, q = assert_sampled_like_reference(start, pair, temperature, rng.random((4, s), F32))
    np.testing.assert_array_equal(path[0], host_walk(start[:1], pair[:1])[0][0])
    np.testing.assert_array_equal(q[0], np.eye(k, dtype=F32)[path[0]])


def test_last_candidate_with_mass_when_the_sum_stays_below_the_uniform():
    start = np.random.default_rng(0).normal(size=(200, 8)).astype(F32)
    start[:, -1] = np.nan
    uniforms = np.full((200, 1), BELOW_ONE)
    path, q = host_walk(start, np.empty((200, 0, 8, 8), F32), np.ones(200, F32), uniforms)
    short = np.add.accumulate(q[:, 0], axis=1, dtype=F32)[:, -1] <= BELOW_ONE
    assert short.any()
    assert (path[short] == 6).all()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_to_choose_from_is_candidate_zero(temperature):
    start = np.array([[np.nan] * 3, [np.nan, -np.inf, -np.inf]], F32)
    path, q = host_walk(start, np.empty((2, 0, 3, 3)), np.full(2, temperature), np.full((2, 1), 0.9))
    assert path.tolist() == [[0], [0]]
    assert q[:, 0].tolist() == [[1, 0, 0], [1, 0, 0]]


def test_infinite_scores_share_the_proposal_and_nan_gets_nothing():
    start = np.array([[np.inf, np.nan, np.inf, 3.0]], F32)
    path, q = host_walk(start, np.empty((1, 0, 4, 4)), [1.0], [[0.6]])
    assert (path.tolist(), q.tolist()) == ([[2]], [[[0.5, 0, 0.5, 0]]])


GOOD = {
    "start": np.zeros((2, 3)),
    "pair": np.zeros((2, 4, 3, 3)),
    "temperature": np.ones(2),
    "uniforms": np.zeros((2, 5)),
}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"start": np.zeros(3)}, r"expected start \(N,K\)"),
        ({"pair": np.zeros((2, 4, 3, 2))}, r"pair has shape \(2, 4, 3, 2\), expected \(2, 4, 3, 3\)"),
        ({"start": np.zeros((2, 33)), "pair": np.zeros((2, 4, 33, 33))}, "K is 33, expected 1 to 32"),
        ({"start": np.zeros((2, 0)), "pair": np.zeros((2, 4, 0, 0))}, "K is 0"),
        ({"pair": np.zeros((2, 63, 3, 3)), "uniforms": np.zeros((2, 64))}, "S is 64, expected 1 to 63"),
        ({"uniforms": None}, "go together"),
        ({"temperature": np.ones((2, 1))}, r"temperature has shape \(2, 1\), expected \(2,\)"),
        ({"temperature": np.array([1, -0.1])}, "at least 0"),
        ({"temperature": np.array([1, np.nan])}, "finite"),
        ({"uniforms": np.ones((2, 5))}, r"\[0, 1\)"),
        ({"uniforms": np.zeros((2, 4))}, r"uniforms has shape \(2, 4\), expected \(2, 5\)"),
    ],
)
def test_bad_input_is_named(changed, words):
    host_walk(**GOOD)
    with pytest.raises(ValueError, match=words):
        host_walk(**(GOOD | changed))


@pytest.fixture
def fresh_build(tmp_path, monkeypatch):
    """An empty cache folder, before and after which nothing is remembered."""
    monkeypatch.setattr(host.paths, "cache", lambda: tmp_path)
    host._library.cache_clear()
    yield tmp_path
    host._library.cache_clear()


def test_built_once_and_found_again(fresh_build, monkeypatch):
    host_walk(**GOOD)
    (built,) = fresh_build.iterdir()
    host._library.cache_clear()
    monkeypatch.setenv("CXX", "no-such-compiler")
    host_walk(**GOOD)
    assert list(fresh_build.iterdir()) == [built]


@pytest.mark.parametrize(("variable", "value", "words"), [("PATH", "", "no C"), ("CXX", "false", "did not compile")])
def test_no_compiler_and_a_failing_one(fresh_build, monkeypatch, variable, value, words):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv(variable, value)
    with pytest.raises(PluginError, match=words):
        host_walk(**GOOD)
    assert list(fresh_build.iterdir()) == []
