"""Claim: each pair of racing steps is played in both orders on every backend, and no pair is left out of the table."""

from __future__ import annotations

import importlib
import inspect
from itertools import product
from pathlib import Path

import pytest

from tests.races import conftest
from tests.races.pairs import PAIRS, PLAYED
from tests.races.stage import BACKENDS

for path in sorted(Path(__file__).parent.glob("test_*.py")):
    importlib.import_module(f"tests.races.{path.stem}")


@pytest.mark.parametrize("pair", PAIRS)
def test_each_order_is_played_on_every_backend(pair: str) -> None:
    wanted = set(product(PAIRS[pair], BACKENDS))
    played = {(each.first, backend) for each in PLAYED if each.pair == pair for backend in each.backends}

    assert played == wanted


def test_what_is_said_to_be_played_is_a_test_of_the_backends_it_names() -> None:
    """A test that takes the stage runs on every backend that the stage is set on."""
    for each in PLAYED:
        assert each.pair in PAIRS, each
        assert each.function.__name__.startswith("test_"), each
        assert "staged" in inspect.signature(each.function).parameters, each
    assert conftest.staged._fixture_function_marker.params == BACKENDS
