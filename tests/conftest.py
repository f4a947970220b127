"""The one switch of the test suite: a reduced run by default, the heavy matrices whole with `--whole`."""

from __future__ import annotations

import gc
import sys
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import settings

# No deadline, no random seed: what a test says must not depend on how busy the machine is or on luck.
settings.register_profile("reduced", deadline=None, derandomize=True, max_examples=25)
settings.register_profile("whole", deadline=None, derandomize=True, max_examples=120)

KEEPING = {"crash", "machine", "recorded", "stateful", "watch"}
"""Folders of tests that keep whole histories while they look at them, and count no descriptors that garbage holds."""
GARBAGE = (20_000, 20, 20)
"""How many more objects than before start a collection of the youngest, and how many of those one of the elder."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole", action="store_true", help="run the heavy matrices whole instead of a sample of them")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("whole" if config.getoption("--whole") else "reduced")
    if sys.dont_write_bytecode:
        _keep_bytecode_of_children(config)


def pytest_collection_finish() -> None:
    """What is imported and collected stays: no collection of garbage during a test walks through it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def whole(pytestconfig: pytest.Config) -> bool:
    """Whether the heavy matrices are to run whole; at collection, ask `metafunc.config.getoption("--whole")`."""
    return bool(pytestconfig.getoption("--whole"))


@pytest.fixture(scope="module", autouse=True)
def collecting_rarely(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where histories are kept, collections would walk through them again and again, and find nothing."""
    if request.path.parent.name not in KEEPING:
        yield
        return
    before = gc.get_threshold()
    gc.set_threshold(*GARBAGE)
    yield
    gc.set_threshold(*before)
    gc.collect()


def _keep_bytecode_of_children(config: pytest.Config) -> None:
    """Where no bytecode is written, hundreds of child processes would compile the library, each for itself."""
    folder = tempfile.TemporaryDirectory(prefix="agentlane-bytecode-", ignore_cleanup_errors=True)
    patch = pytest.MonkeyPatch()
    patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    patch.setenv("PYTHONPYCACHEPREFIX", folder.name)
    config.add_cleanup(folder.cleanup)
    config.add_cleanup(patch.undo)
