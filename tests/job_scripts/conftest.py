from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest


@pytest.fixture
def lab_of_corpus(make_lab: Callable[..., Any]) -> Mapping[str, str]:
    """The variables of a lab whose nodes are as large as those that the scripts request."""
    return make_lab(nodes=6, gpus=8, cpus=128, memory_mb=1 << 20).variables
