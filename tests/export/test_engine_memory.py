"""The estimate against measured builds, and plain words instead of a kill."""

import pytest

from lilicorr.export.engine_memory import Memory, estimate_bytes, free_memory, killed, require_memory
from lilicorr.runtime.errors import UserError

GB = 10**9


@pytest.mark.parametrize(
    ("weights", "nodes", "peak"),
    [
        (538_000_000, 2044, 2.48 * GB),
        (269_000_000, 2044, 1.67 * GB),
        (269_000_000, 1740, 1.66 * GB),
        (83_000_000, 350, 0.62 * GB),
        (59_000_000, 215, 0.51 * GB),
    ],
)
def test_the_estimate_is_no_less_than_measured_and_not_far_above(weights, nodes, peak):
    assert peak <= estimate_bytes(weights, nodes) <= 1.15 * peak


def test_what_fits_is_silent():
    assert require_memory("target", 3 * GB, Memory(4 * GB, 0)) is None
    assert require_memory("target", 3 * GB, None) is None  # a system that does not say


def test_what_needs_swap_is_a_warning():
    assert "it will swap" in require_memory("target", 5 * GB, Memory(4 * GB, 4 * GB))


def test_what_does_not_fit_is_refused_with_numbers_and_advice():
    with pytest.raises(
        UserError, match=r"the target engine does not fit in memory: about 8\.38 GiB to build"
    ) as caught:
        require_memory("target", 9 * GB, Memory(4 * GB, 4 * GB))
    assert "fallocate -l 1G" in caught.value.hint


def test_a_killed_builder_is_explained():
    error = killed("target", 5 << 30)
    assert "the system killed the builder of the target engine" in error.what
    assert "fallocate -l 5G" in error.hint


def test_memory_is_read_from_linux(tmp_path):
    file = tmp_path / "meminfo"
    file.write_text("MemTotal: 8 kB\nMemAvailable:  2048 kB\nSwapFree: 1024 kB\n")
    assert free_memory(file) == Memory(2048 << 10, 1024 << 10)
    assert free_memory(tmp_path / "none") is None
