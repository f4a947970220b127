"""Claim: every public name is importable, documented, in sorted order, and exported from exactly one place."""

from __future__ import annotations

import ast
import importlib
from collections import Counter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
PLACES = ["agentlane", "agentlane.storage", "agentlane.testing", "agentlane.tools.workspace"]


@pytest.mark.parametrize("place", PLACES)
def test_public_names_are_importable_and_sorted(place: str) -> None:
    module = importlib.import_module(place)
    names = module.__all__

    assert names, f"{place} exports nothing"
    assert list(names) == sorted(set(names))
    assert [name for name in names if not hasattr(module, name)] == []


@pytest.mark.parametrize("place", PLACES)
def test_public_names_are_documented(place: str) -> None:
    names = importlib.import_module(place).__all__
    found = [where for name in names if (where := undocumented(SOURCE, place, name))]

    assert not found, "\n".join(found)


def test_public_names_have_one_home() -> None:
    everywhere = [(place, name) for place in PLACES for name in importlib.import_module(place).__all__]
    by_name = Counter(name for _, name in everywhere)
    homes: dict[int, set[str]] = {}
    for place, name in everywhere:
        homes.setdefault(id(getattr(importlib.import_module(place), name)), set()).add(place)

    assert [name for name, count in by_name.items() if count > 1] == []
    assert [places for places in homes.values() if len(places) > 1] == []


def test_every_source_file_says_what_it_is_for() -> None:
    files = sorted((SOURCE / "agentlane").rglob("*.py"))

    assert files
    assert [str(path) for path in files if not ast.get_docstring(ast.parse(path.read_text()))] == []


@pytest.mark.parametrize(
    ("definition", "documented"),
    [
        ('def thing():\n    """Do it."""', True),
        ("def thing():\n    return 1", False),
        ('class thing:\n    """One."""', True),
        ("class thing:\n    pass", False),
        ('thing = int | str\n"""Either."""', True),
        ("thing = int | str", False),
        ('thing: int = 1\n"""One."""', True),
        ("thing: int = 1\nother = 2", False),
        ("@overload\ndef thing(x: int) -> int: ...\ndef thing(x):\n    '''Do it.'''", True),
    ],
)
def test_a_name_without_documentation_is_found(tmp_path: Path, definition: str, documented: bool) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("from pack.inner import thing")
    (tmp_path / "pack" / "inner.py").write_text("from .home import origin as thing")
    (tmp_path / "pack" / "home.py").write_text(definition.replace("thing", "origin"))

    place = undocumented(tmp_path, "pack", "thing")

    assert place is None if documented else place == f"{tmp_path / 'pack' / 'home.py'}: origin has no docstring"


def unconditional(node: ast.stmt) -> list[ast.stmt]:
    """What a statement defines: what is imported for types alone is imported, at run time, by whoever names it."""
    for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    return node.body if isinstance(node, ast.If) and for_types else [node]


def undocumented(source: Path, module: str, name: str) -> str | None:
    """Where `name` is defined, when nothing is said about it there; a re-export is followed to its definition."""
    path = source.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    body = [each for node in ast.parse(path.read_text()).body for each in unconditional(node)]
    said: bool | None = None
    for node, after in zip(body, [*body[1:], None], strict=True):
        match node:
            case ast.ImportFrom(module=base, names=aliases, level=level):
                for alias in aliases:
                    if (alias.asname or alias.name) == name:
                        parents = package.split(".")[: len(package.split(".")) - level + 1] if level else []
                        return undocumented(source, ".".join([*parents, *([base] if base else [])]), alias.name)
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef() if node.name == name:
                said = ast.get_docstring(node) is not None
            case ast.Assign(targets=[ast.Name(id=target)]) | ast.AnnAssign(target=ast.Name(id=target)):
                if target == name:
                    said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            case _:
                pass
    return None if said else f"{path}: {name} has no docstring"
