"""Claim: arrows point down only; no floor imports one above it or beside it, whether at run time or for types."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = "agentlane"

# Which floor a module or package directly under agentlane/ stands on. A new one is given its floor here.
FLOORS = {
    "ground": {"clock", "errors", "ids", "names", "turnstile", "waiting"},
    "data": {"data"},
    "storage": {"storage"},
    "histories": {"histories"},
    "machine": {"machine"},
    "declarations": {
        *("agent", "agent_tool", "approval", "hooks", "model", "output", "signatures", "skills", "tool"),
        *("tool_context", "tool_methods"),
    },
    "driver": {"driver"},
    "objects": {
        *(
            "branch",
            "forking",
            "inspection",
            "lane",
            "lane_inbox",
            "opening",
            "session",
            "session_data",
            "session_whole",
            "stream",
        ),
        "watch",
    },
    "surface": {"__init__"},
    "testing": {"testing"},
    "edges": {"cli", "host", "mcp", "models", "telemetry", "tools"},
}

# Which other floors each floor may import. Histories, storage, machine and declarations are siblings that never see
# each other.
SEES = {
    "ground": set[str](),
    "data": {"ground"},
    "storage": {"ground", "data"},
    "histories": {"ground", "data"},
    "machine": {"ground", "data"},
    "declarations": {"ground", "data"},
    "driver": {"ground", "data", "histories", "storage", "machine", "declarations"},
    "objects": {"ground", "data", "histories", "storage", "machine", "declarations", "driver"},
    "surface": {"ground", "data", "histories", "storage", "machine", "declarations", "driver", "objects"},
    "testing": {"ground", "data", "histories", "storage", "machine", "declarations", "driver", "objects", "surface"},
    "edges": set[str](),  # through PUBLIC only
}

# What an edge may import: the places that an application imports from.
PUBLIC = {"agentlane", "agentlane.storage"}

# Imports under `if TYPE_CHECKING` that may break the rule, as (importer, imported), each with its reason.
ALLOWED_FOR_TYPES: set[tuple[str, str]] = set()

# The runtime dependencies of pyproject.toml, by the names they are imported by.
DEPENDENCIES = {"aiosqlite", "anyio", "msgspec", "typing_extensions"}

# What else the modules of an extra may import: its SDK, and what that is made of.
EXTRAS = {
    "agentlane.mcp": {"mcp"},
    "agentlane.mcp.calling": {"mcp", "mcp_types", "pydantic"},
    "agentlane.mcp.connection": {"mcp", "mcp_types", "pydantic"},
    "agentlane.mcp.declaring": {"mcp_types"},
    "agentlane.mcp.http": {"httpx2"},
    "agentlane.mcp.mending": {"mcp", "mcp_types", "pydantic"},
    "agentlane.mcp.results": {"mcp_types"},
    "agentlane.mcp.server": {"mcp_types"},
    "agentlane.mcp.stdio": {"mcp"},
    "agentlane.mcp.wire": {"httpx2", "mcp", "mcp_types"},
    "agentlane.models.anthropic": {"anthropic"},
    "agentlane.models.openai_client": {"openai"},
    "agentlane.models.pydantic_ai": {"pydantic_ai"},
    "agentlane.models.pydantic_ai_answer": {"pydantic_ai"},
    "agentlane.models.pydantic_ai_marks": {"pydantic_ai"},
    "agentlane.models.pydantic_ai_request": {"pydantic_ai"},
}

# What the machine may not import: it has no I/O, clock, randomness or concurrency.
IMPURE = {
    *("aiosqlite", "anyio", "asyncio", "concurrent", "contextvars", "datetime", "fcntl", "io", "logging", "os"),
    *("pathlib", "random", "secrets", "selectors", "shutil", "signal", "socket", "sqlite3", "subprocess"),
    *("tempfile", "threading", "time", "uuid"),
}


@dataclass(frozen=True, kw_only=True)
class Import:
    """One import statement's reach for one module."""

    path: Path
    line: int
    importer: str
    imported: str
    for_types: bool

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.importer} imports {self.imported}"


def test_imports_point_down_only() -> None:
    found = violations(ROOT / "src")

    assert not found, "\n".join(found)


def test_no_module_imports_itself_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for each in imports(ROOT / "src"):
        if not each.for_types:
            graph.setdefault(each.importer, set()).add(each.imported)

    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail("modules import each other in a circle: " + " -> ".join(error.args[1]))


def test_only_declared_dependencies_are_imported() -> None:
    found = [
        f"{each}: not the standard library and not a runtime dependency"
        for each in imports(ROOT / "src", foreign=True)
        if each.imported not in sys.stdlib_module_names | DEPENDENCIES | EXTRAS.get(each.importer, set())
    ]

    assert not found, "\n".join(found)


def test_the_machine_is_pure() -> None:
    found = [
        f"{each}: machine/ has no I/O, clock, randomness or concurrency"
        for each in imports(ROOT / "src", foreign=True)
        if each.importer.startswith("agentlane.machine") and each.imported in IMPURE
    ]

    assert not found, "\n".join(found)


def test_allowed_imports_for_types_are_still_there() -> None:
    seen = {(each.importer, each.imported) for each in imports(ROOT / "src") if each.for_types}

    assert seen >= ALLOWED_FOR_TYPES


@pytest.mark.parametrize(
    ("name", "text", "rule"),
    [
        ("data/entries.py", "from agentlane.storage.contract import Write", "data may not see storage"),
        ("data/entries.py", "from ..storage import contract", "data may not see storage"),
        ("data/entries.py", "from agentlane import storage", "data may not see storage"),
        ("data/entries.py", "from agentlane import Agent", "data may not see surface"),
        ("data/entries.py", "def f():\n    import agentlane.driver", "data may not see driver"),
        ("machine/run.py", "from agentlane.storage import contract", "machine may not see storage"),
        ("storage/contract.py", "import agentlane.machine.run", "storage may not see machine"),
        ("errors.py", "if TYPE_CHECKING:\n    from agentlane.data import entries", "ground may not see data"),
        ("agent.py", "from .machine.run import step", "declarations may not see machine"),
        ("driver/drive.py", "from agentlane.lane import AgentLane", "driver may not see objects"),
        ("lane.py", "from agentlane.testing import ScriptedModel", "objects may not see testing"),
        ("cli.py", "from agentlane.lane import AgentLane", "edges may not see objects"),
        ("stray.py", "", "stray.py:1: agentlane.stray has no floor"),
    ],
)
def test_an_import_upwards_is_found(tmp_path: Path, name: str, text: str, rule: str) -> None:
    write_tree(tmp_path, {name: text})

    found = violations(tmp_path)

    assert len(found) == 1 and rule in found[0], found
    assert f"{tmp_path / PACKAGE / name}:{max(1, len(text.splitlines()))}: " in found[0]


def test_imports_downwards_are_free(tmp_path: Path) -> None:
    tree = {
        "data/entries.py": "from agentlane.errors import CorruptSession\nfrom . import writes\nimport agentlane.names",
        "machine/run.py": "from ..data.entries import Entry\nfrom agentlane import ids",
        "driver/drive.py": "from agentlane.machine import run\nfrom agentlane.storage.contract import Pending",
        "session.py": "from agentlane.lane import AgentLane\nfrom agentlane.driver.drive import Drive",
        "__init__.py": "from agentlane.session import Session",
        "testing/models.py": "from agentlane import Session\nimport agentlane.driver.drive",
        "cli.py": "from agentlane import Session\nfrom agentlane.storage import SqliteStore",
    }
    write_tree(tmp_path, tree)

    assert violations(tmp_path) == []


def violations(source: Path) -> list[str]:
    """Each import below `source` that breaks the rule, with its place, and each module that has no floor."""
    found = [
        f"{path}:1: {module} has no floor; give it one in {Path(__file__).name}"
        for module, path in modules(source).items()
        if floor_of(module) is None
    ]
    for each in imports(source):
        lower, upper = floor_of(each.imported), floor_of(each.importer)
        if upper is None or lower is None or lower == upper or lower in SEES[upper]:
            continue
        if upper == "edges" and each.imported in PUBLIC:
            continue
        if each.for_types and (each.importer, each.imported) in ALLOWED_FOR_TYPES:
            continue
        found.append(f"{each}: {upper} may not see {lower}")
    return found


def floor_of(module: str) -> str | None:
    name = module.split(".")[1] if "." in module else "__init__"
    return next((floor for floor, names in FLOORS.items() if name in names), None)


def modules(source: Path) -> dict[str, Path]:
    """Every module of the package below `source` by its dotted name."""
    found = {}
    for path in sorted((source / PACKAGE).rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    assert found, f"no source below {source / PACKAGE}"
    return found


def imports(source: Path, *, foreign: bool = False) -> Iterator[Import]:
    """The package's imports of its own modules, or with `foreign` of all others by their top name."""
    for each, is_foreign in all_imports(source):
        if is_foreign is foreign:
            yield each


@cache
def all_imports(source: Path) -> list[tuple[Import, bool]]:
    """Every import below `source`, each with whether it is of another package; read once, for all who ask."""
    found = []
    known = modules(source)
    for module, path in known.items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        for node, for_types in import_statements(ast.parse(path.read_text(), filename=str(path)), for_types=False):
            for target in sorted(targets(node, package=package, known=known)):
                top = target.split(".")[0]
                foreign = top != PACKAGE
                imported = top if foreign else target
                one = Import(path=path, line=node.lineno, importer=module, imported=imported, for_types=for_types)
                found.append((one, foreign))
    return found


def import_statements(tree: ast.AST, *, for_types: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, for_types
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for child in node.body:
                yield from import_statements(ast.Module([child], []), for_types=True)
            for child in node.orelse:
                yield from import_statements(ast.Module([child], []), for_types=for_types)
        else:
            yield from import_statements(node, for_types=for_types)


def targets(node: ast.Import | ast.ImportFrom, *, package: str, known: dict[str, Path]) -> set[str]:
    """The modules a statement names: `from a import b` names `a.b` where that is a module, else `a`."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    base = node.module or ""
    if node.level:
        parents = package.split(".")
        base = ".".join([*parents[: len(parents) - node.level + 1], *([node.module] if node.module else [])])
    return {full if (full := f"{base}.{alias.name}") in known else base for alias in node.names}


def write_tree(source: Path, files: dict[str, str]) -> None:
    """A package with an empty module at each place that the samples import, and `files` over it."""
    places = ["__init__", "errors", "ids", "names", "agent", "lane", "data/__init__", "data/writes", "driver/__init__"]
    places += ["driver/drive", "machine/__init__", "machine/run", "storage/__init__", "storage/contract"]
    for name, text in {f"{place}.py": "" for place in places}.items() | files.items():
        path = source / PACKAGE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text or not path.exists():
            path.write_text(text)
