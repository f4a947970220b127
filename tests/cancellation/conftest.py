"""Garbage is collected at each of very many points, so what was there before is kept out of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cancellation.leaks import collecting_little


@pytest.fixture(scope="module", autouse=True)
def little_to_collect() -> Iterator[None]:
    with collecting_little():
        yield
