"""A defect that is put into the library on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.stateful.programs import Program
from tests.stateful.world import BACKENDS, Backend


class Defect(NamedTuple):
    """What is broken, how, and a program that tells."""

    name: str
    put_in: Callable[[pytest.MonkeyPatch], None]
    program: Program
    backends: tuple[Backend, ...] = BACKENDS
    """Where it shows."""


def above_stores(*defects: Defect) -> tuple[Defect, ...]:
    """Defects of what is above all stores: they show on one as on the others."""
    return tuple(defect._replace(backends=("memory",)) for defect in defects)
