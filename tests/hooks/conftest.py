"""The place that a run with hooks is played on: each backend in turn."""

from __future__ import annotations

from tests.cases.conftest import place
from tests.session.conftest import memory

__all__ = ["memory", "place"]
