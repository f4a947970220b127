"""Every boundary that there is: read from the library's own source, where each commit and each effect is named once."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from functools import cache

import agentlane.driver
import agentlane.machine

PARTS = ("before", "inside", "after")
"""Where a commit can be stopped: not written, half written or not reported, reported."""

MODULES = ("agentlane.session", "agentlane.session_data")
"""Modules outside of ``driver`` and ``machine`` that name commits."""


@cache
def library_boundaries() -> frozenset[str]:
    """Every boundary of the library: each commit before, inside and after, and each start and end of an effect.

    A commit that does the work of several has its rows' names joined with ``+``; here each row stands by itself.
    """
    commits, effects = set[str](), set[str]()
    for tree in _sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                commits.update(_commit_names(node))
                effects.update(_effect_names(node))
            elif isinstance(node, ast.Assign) and _targets(node) == ["boundary"]:
                commits.update(_texts(node.value))
    return frozenset({f"commit.{name}.{part}" for name in commits for part in PARTS} | effects)


def rows_of(boundary: str) -> list[str]:
    """The boundaries that one boundary stands for: one for each row that a merged commit joins."""
    if not boundary.startswith("commit."):
        return [boundary]
    _, names, part = boundary.split(".")
    return [f"commit.{name}.{part}" for name in names.split("+")]


def name_of(boundary: str) -> str:
    """The commit or effect that a boundary belongs to."""
    return boundary.rsplit(".", 1)[0]


def _sources() -> Iterator[ast.Module]:
    names = [*MODULES]
    for package in (agentlane.driver, agentlane.machine):
        names += [each.name for each in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")]
    for name in names:
        yield ast.parse(inspect.getsource(importlib.import_module(name)))


def _commit_names(node: ast.Call) -> Iterator[str]:
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if (called == "Decision" and len(node.args) > 1) or (called == "_commit" and len(node.args) > 1):
        yield from _texts(node.args[1])
    elif called == "append" and ast.unparse(node.func).endswith("boundaries.append"):
        yield from _texts(node.args[0])
    elif called == "Step":
        for keyword in node.keywords:
            if keyword.arg == "boundary":
                yield from _texts(keyword.value)


def _effect_names(node: ast.Call) -> Iterator[str]:
    if isinstance(node.func, ast.Attribute) and node.func.attr == "reached" and len(node.args) == 1:
        yield from _texts(node.args[0])


def _texts(node: ast.expr) -> Iterator[str]:
    """The texts that an expression is, whichever way a condition in it goes."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from _texts(node.body)
        yield from _texts(node.orelse)


def _targets(node: ast.Assign) -> list[str]:
    return [each.id for each in node.targets if isinstance(each, ast.Name)]
