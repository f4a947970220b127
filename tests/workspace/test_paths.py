"""Claim: no path that a model gives leads out of the folder, whatever links are in it and whoever changes it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlane import InvalidDefinition
from agentlane.tools.workspace import Workspace
from agentlane.tools.workspace.paths import Refused, Root
from tests.workspace.stub import Hands, tree

SECRET = b"SECRET of others"
NAMES = st.sampled_from(["a", "b", "c"])
STEPS = st.lists(st.sampled_from(["a", "b", "c", "..", ".", ""]), min_size=1, max_size=6).map("/".join)
TARGETS = STEPS | st.tuples(st.sampled_from(["{root}", "{out}", "{root}/..", "/"]), STEPS).map("/".join)
ENTRIES = st.dictionaries(
    st.tuples(NAMES) | st.tuples(NAMES, NAMES) | st.tuples(NAMES, NAMES, NAMES),
    st.just(None) | st.binary(max_size=5) | TARGETS,
    max_size=7,
)


def planted(base: Path, entries: dict[tuple[str, ...], Any]) -> tuple[Path, Path]:
    """A workspace and a folder beside it that holds a secret; entries that cannot be made are left out."""
    root, out = base / "root", base / "out"
    for folder in (root, out, out / "a"):
        folder.mkdir()
    for name in ("a/b", "b", "secret"):
        (out / name).write_bytes(SECRET)
    for path, kind in sorted(entries.items(), key=lambda each: len(each[0])):
        place = root.joinpath(*path)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            if kind is None:
                place.mkdir()
            elif isinstance(kind, bytes):
                with open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW), "wb") as file:
                    file.write(kind)
            else:
                place.symlink_to(kind.format(root=root, out=out))
        except OSError:
            pass
        if not os.path.realpath(place.parent).startswith(str(root)):
            break  # what is made from here on might be outside
    return root, out


@settings(max_examples=40)
@given(ENTRIES, TARGETS)
def test_nothing_outside_is_read_or_changed(entries: dict[tuple[str, ...], Any], path: str) -> None:
    """And what the system itself finds inside, through no ``..``, is found here too."""
    with tempfile.TemporaryDirectory() as name:
        root, out = planted(Path(name), entries)
        path = path.format(root=root, out=out)
        before = tree(out)
        hands = Hands(root)
        real = Path(os.path.realpath(root / path))
        inside = real.is_relative_to(root)
        dots = ".." in path or any(".." in str(link) for link in tree(root).values())
        expected = real.read_bytes() if inside and real.is_file() and not dots else None

        shown = []
        for tool, arguments in (
            ("read_file", {"path": path}),
            ("list_files", {"path": path, "depth": 9}),
            ("search_files", {"path": path, "text": "SECRET"}),
            ("edit_file", {"path": path, "old_text": "SECRET", "new_text": "x", "replace_all": True}),
            ("write_file", {"path": path, "content": "mine"}),
            ("delete_file", {"path": path, "recursive": True}),
        ):
            try:
                shown.append(hands(tool, **arguments))
            except OSError as error:
                shown.append(f"refused: {error}")

        assert tree(out) == before, shown
        assert SECRET.decode() not in "".join(shown)
        if expected is not None and b"\0" not in expected:
            assert not shown[0].startswith("refused:"), (path, shown[0])
        if not inside:
            assert all(each.startswith("refused:") for each in shown[:5]), (path, shown)


@pytest.mark.parametrize(
    "path",
    ["..", "../out/secret", "a/../../out/secret", "/etc/passwd", "/", "{root}/../out/secret", "{root}x", "a/\0b"],
)
def test_a_path_that_leads_out_is_refused_with_what_to_give_instead(tmp_path: Path, path: str) -> None:
    root, _ = planted(tmp_path, {("a",): None})

    text = Hands(root)("read_file", path=path.format(root=root))

    assert text.startswith("refused: ") and ("outside of the workspace; give a path" in text or "zero byte" in text)


def test_paths_inside_may_be_absolute_and_go_through_links_that_stay_inside(tmp_path: Path) -> None:
    root, _ = planted(tmp_path, {("a", "b"): b"found"})
    (root / "up").symlink_to("a/../a")
    (root / "far").symlink_to(root / "a")
    other = tmp_path / "other"
    other.symlink_to(root)
    hands = Hands(other)

    for path in ("a/b", "./a//b", "a/../a/b", f"{root}/a/b", f"{other}/a/b", "up/b", "far/b", f"{other}/far/b"):
        assert hands("read_file", path=path) == "1\tfound", path


def test_a_link_is_written_through_inside_and_deleted_itself(tmp_path: Path) -> None:
    root, out = planted(tmp_path, {("a",): b"old"})
    (root / "link").symlink_to("a")
    (root / "away").symlink_to(out / "secret")
    hands = Hands(root)

    assert hands("write_file", path="link", content="new") == "wrote 3 bytes to a"
    assert (root / "link").is_symlink() and (root / "a").read_bytes() == b"new"
    assert hands("write_file", path="away", content="new").startswith("refused: 'away' is outside")
    assert hands("delete_file", path="away") == "deleted away"
    assert (out / "secret").read_bytes() == SECRET and not (root / "away").is_symlink()


def test_a_circle_of_links_ends(tmp_path: Path) -> None:
    root, _ = planted(tmp_path, {})
    (root / "x").symlink_to("y/z")
    (root / "y").symlink_to("x")

    assert Hands(root)("read_file", path="x") == "refused: 'x' goes through more than 40 links"


def test_depth_is_bounded_and_no_descriptor_is_left_open(tmp_path: Path) -> None:
    hands = Hands(tmp_path, depth=5)
    open_before = len(os.listdir("/dev/fd"))

    assert "more than 5 folders deep" in hands("write_file", path="a/" * 9 + "x", content="")
    assert hands("write_file", path="b/x", content="y") == "wrote 1 bytes to b/x"
    assert hands("read_file", path="b/x/c").startswith("refused: 'b/x/c': 'x' is no folder")
    assert len(os.listdir("/dev/fd")) == open_before


CALLS = ("open", "readlink", "stat", "mkdir", "rename", "unlink", "scandir", "fsync")
RACES: list[tuple[str, dict[str, Any]]] = [
    ("read_file", {"path": "a/b/file"}),
    ("list_files", {"path": "a/b", "depth": 3}),
    ("list_files", {"path": ".", "depth": 5}),
    ("search_files", {"path": "a", "text": "SECRET"}),
    ("write_file", {"path": "a/b/file", "content": "mine"}),
    ("write_file", {"path": "a/b/new/file", "content": "mine"}),
    ("edit_file", {"path": "a/b/file", "old_text": "t", "new_text": "x"}),
    ("delete_file", {"path": "a/b/file"}),
    ("delete_file", {"path": "a/b", "recursive": True}),
]


@pytest.mark.parametrize("swapped", ["a", "a/b", "a/b/file"])
@pytest.mark.parametrize(("tool", "arguments"), RACES, ids=[f"{name} {args['path']}" for name, args in RACES])
def test_a_link_that_takes_the_place_of_any_step_at_any_moment_leads_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, arguments: dict[str, Any], swapped: str, whole: bool
) -> None:
    """Before each call to the system in turn, what the path goes through is replaced by a link to what is outside."""
    moment = 0 if whole else len(tool + swapped) % 3
    while True:
        base = tmp_path / str(moment)
        root, out = base / "root", base / "out"
        for folder in (root / "a/b", out / "b/new"):
            folder.mkdir(parents=True)
        (root / "a/b/file").write_bytes(b"text")
        for name in ("file", "b/file", "b/new/file"):
            (out / name).write_bytes(SECRET)
        before = tree(out)
        calls = 0

        def swap(root: Path = root, out: Path = out) -> None:
            place = root / swapped
            os.replace(place, root.parent / "aside")
            place.symlink_to(out / "file" if swapped == "a/b/file" else out / "b" if swapped == "a/b" else out)

        hands = Hands(root)
        with monkeypatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, counted(getattr(os, name), lambda at=moment, swap=swap: step(at, swap)))

            def step(at: int, swap: Callable[[], None]) -> None:
                nonlocal calls
                calls += 1
                if calls == at + 1:
                    for name in CALLS:
                        patch.setattr(os, name, getattr(REAL, name))
                    try:
                        swap()
                    except OSError:
                        pass  # it is gone by now

            try:
                text = hands(tool, **arguments)
            except OSError as error:
                text = str(error)

        assert tree(out) == before, (moment, text)
        assert "SECRET" not in text, moment
        if calls <= moment:
            return
        moment += 1 if whole else 3
        assert moment < 200


class REAL:
    """The calls as they are."""


for _name in CALLS:
    setattr(REAL, _name, staticmethod(getattr(os, _name)))


def counted(function: Callable[..., Any], told: Callable[[], None]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        told()
        return function(*args, **kwargs)

    return call


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    hands = Hands(tmp_path)

    assert hands("read_file", path="pipe") == "refused: 'pipe' is no regular file"
    assert hands("write_file", path="pipe", content="x") == "refused: 'pipe' is no regular file"
    assert hands("edit_file", path="folder", old_text="a", new_text="b") == "refused: 'folder' is a folder"
    assert hands("write_file", path=".", content="x") == "refused: '.' is a folder"
    assert hands("read_file", path="none") == "refused: 'none': there is no such file"
    assert hands("read_file", path="no/where") == "refused: 'no/where': there is no folder 'no'"
    assert "pipe (no regular file)" in hands("list_files")


@pytest.mark.parametrize("instead", ["link", "nothing"])
def test_a_link_in_the_place_of_the_folder_itself_leads_nowhere(tmp_path: Path, instead: str) -> None:
    root, out = tmp_path / "root", tmp_path / "out"
    for folder in (root, out):
        folder.mkdir()
        (folder / "file").write_bytes(SECRET)
    hands, before = Hands(root), tree(out)
    root.rename(tmp_path / "aside")
    if instead == "link":
        root.symlink_to(out)

    for tool, arguments in (
        ("read_file", {"path": "file"}),
        ("list_files", {}),
        ("search_files", {"text": "SECRET"}),
        ("write_file", {"path": "file", "content": "mine"}),
        ("edit_file", {"path": "file", "old_text": "S", "new_text": "s"}),
        ("delete_file", {"path": "file"}),
    ):
        assert hands(tool, **arguments).startswith("refused: the workspace's own folder cannot be opened"), tool
    assert tree(out) == before


def test_a_workspace_needs_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    for name in ("none", "file"):
        with pytest.raises(InvalidDefinition, match="there is no such folder"):
            Workspace(tmp_path / name)
    with pytest.raises(Refused), Root(tmp_path, depth=9).place("../x"):
        pass
