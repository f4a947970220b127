"""Claim: the public surface is typed as its users read it; this file is checked by mypy and run by pytest."""

from __future__ import annotations

from importlib.resources import files


def test_the_package_says_that_it_is_typed() -> None:
    assert (files("agentlane") / "py.typed").is_file()
