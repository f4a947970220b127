"""One zygote for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kills.children import Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    made = Zygote()
    yield made
    made.close()
