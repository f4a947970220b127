"""The place that a run with hooks is played on: each backend in turn."""

from __future__ import annotations

from tests.cases.conftest import place

__all__ = ["place"]
