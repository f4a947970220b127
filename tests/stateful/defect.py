"""A defect that is put into the library on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.stateful.programs import Program


class Defect(NamedTuple):
    """What is broken, how, and a program that tells."""

    name: str
    put_in: Callable[[pytest.MonkeyPatch], None]
    program: Program
