"""The one switch of the test suite: a reduced run by default, the heavy matrices whole with `--whole`."""

from __future__ import annotations

import gc

import pytest
from hypothesis import settings

# No deadline, no random seed: what a test says must not depend on how busy the machine is or on luck.
settings.register_profile("reduced", deadline=None, derandomize=True, max_examples=40)
settings.register_profile("whole", deadline=None, derandomize=True, max_examples=150)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole", action="store_true", help="run the heavy matrices whole instead of a sample of them")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("whole" if config.getoption("--whole") else "reduced")


def pytest_collection_finish() -> None:
    """What is imported and collected stays: no collection of garbage during a test walks through it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def whole(pytestconfig: pytest.Config) -> bool:
    """Whether the heavy matrices are to run whole; at collection, ask `metafunc.config.getoption("--whole")`."""
    return bool(pytestconfig.getoption("--whole"))
