"""The built plugin library, or the reason why there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from lilicorr.plugins_trt import PluginError, find


@pytest.fixture(scope="session")
def library() -> Path:
    try:
        return find()
    except PluginError as error:
        pytest.skip(str(error))
