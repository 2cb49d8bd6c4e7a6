"""The timing cache file: kept between builds, and never a reason to fail."""

import pytest

from lilicorr.export.timing_cache import attach, store, timing_cache_path


class Cache:
    def __init__(self, content):
        self.content = content

    def serialize(self):
        return self.content


class Config:
    """Takes caches whose content starts with `mine`, as TensorRT takes those of its own version and device."""

    taken = None

    def create_timing_cache(self, content):
        return None if content == b"garbage" else Cache(content)

    def set_timing_cache(self, cache, ignore_mismatch):
        assert not ignore_mismatch
        if cache.content and not cache.content.startswith(b"mine"):
            return False
        self.taken = cache
        return True

    def get_timing_cache(self):
        return Cache(b"mine and more")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "sm87.cache"


def test_a_first_build_starts_fresh_without_a_warning(path):
    config = Config()
    assert attach(config, path) is None
    assert config.taken.content == b""


def test_what_was_stored_is_taken_by_the_next_build(path):
    store(Config(), path)
    config = Config()
    assert attach(config, path) is None
    assert config.taken.content == b"mine and more"
    assert sorted(p.name for p in path.parent.iterdir()) == ["sm87.cache", "sm87.lock"]


@pytest.mark.parametrize("content", [b"of another driver", b"garbage"])
def test_a_cache_that_is_not_taken_is_a_warning(path, content):
    path.parent.mkdir()
    path.write_bytes(content)
    config = Config()
    assert "stale or damaged" in attach(config, path)
    assert config.taken.content == b""


def test_the_path_names_backend_version_and_device(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert timing_cache_path("tensorrt", "10.3.0", "8.7") == tmp_path / "lilicorr/timing/tensorrt-10.3.0-sm87.cache"
    assert timing_cache_path("tensorrt-rtx", "1.7.1", "8.9") is None
