"""Claim: each kind of failure that is to be covered names tests that are there, and what waits cannot be tested yet."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest

from tests.cases.table import CASES

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent

WANTED = [
    f"R{number:02}"
    for number in (
        *(1, 3, 4, 6, 7, 8, 9, 10, 12, 13, 15, 16, 17, 19, 21, 22, 24, 25, 26, 27),
        *(28, 29, 30, 31, 33, 34, 36, 37, 38, 39, 41, 42, 43, 45, 46, 47, 48, 50, 52, 53),
        *(55, 57, 59, 60, 62, 64, 66, 67, 69, 70, 72, 73, 75, 76, 77, 79, 80, 81, 85, 86),
        *(87, 88, 90, 91, 92, 94, 95, 97, 98, 100, 101, 103, 105, 106, 119, 114, 115, 116, 117, 118),
        *(121, 122, 123, 124, 126, 127, 128, 130, 131, 133, 134, 107, 109, 110, 111, 112, 83, 132, 135, 137, 138),
    )
]
"""The kinds that this table answers for."""


def test_each_kind_is_there_once_and_no_other() -> None:
    assert list(CASES) == WANTED
    kinds = [each.kind for each in CASES.values()]
    assert len(set(kinds)) == len(kinds)
    assert all(len(kind.split()) > 5 for kind in kinds)


@pytest.mark.parametrize("id", CASES)
def test_each_kind_has_tests_that_exist(id: str) -> None:
    tests = CASES[id].tests
    assert tests
    assert len(set(tests)) == len(tests)
    missing = [test for test in tests if test.split("::")[1] not in functions_in(test.split("::")[0])]
    assert missing == []


@pytest.mark.parametrize("needs", sorted({later.needs for each in CASES.values() for later in each.later}))
def test_what_waits_cannot_be_tested_yet(needs: str) -> None:
    waiting = [f"{id}: {later.what}" for id, each in CASES.items() for later in each.later if later.needs == needs]
    assert not exists(needs), f"{needs} is there now, so these can be tested: {waiting}"


def test_a_name_that_exists_is_told_from_one_that_does_not() -> None:
    assert exists("agentlane.AgentLane.drive")
    assert exists("agentlane.Agent(tools)")
    assert exists("agentlane.testing")
    assert not exists("agentlane.AgentLane.fly")
    assert not exists("agentlane.Agent(wings)")
    assert not exists("agentlane.nothing")


def test_each_test_of_a_case_is_in_the_table() -> None:
    cited = {test for each in CASES.values() for test in each.tests}
    own = {
        f"{path.relative_to(ROOT)}::{name}"
        for path in HERE.glob("test_*.py")
        if path != Path(__file__)
        for name in functions_in(str(path.relative_to(ROOT)))
    }
    assert own - cited == set()


@functools.cache
def functions_in(path: str) -> frozenset[str]:
    """The names of the test functions of a file that are always run."""
    file = ROOT / path
    if not file.is_file():
        return frozenset()
    return frozenset(
        node.name
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not any(_never_runs(ast.unparse(each)) for each in node.decorator_list)
    )


def _never_runs(decorator: str) -> bool:
    return decorator.split("(")[0] in ("pytest.mark.skip", "pytest.mark.xfail")


def exists(name: str) -> bool:
    """Whether there is a public module, class, method or, as ``class(parameter)``, parameter of that name."""
    path, _, parameter = name.removesuffix(")").partition("(")
    parts = path.split(".")
    found: Any = importlib.import_module(parts[0])
    for index, part in enumerate(parts[1:], 1):
        if hasattr(found, part):
            found = getattr(found, part)
            continue
        try:
            found = importlib.import_module(".".join(parts[: index + 1]))
        except ModuleNotFoundError:
            return False
    return not parameter or parameter in inspect.signature(found).parameters
