"""Claim: a file is read as what it is, edited in one place and nowhere else, and written whole or not at all."""

from __future__ import annotations

import asyncio
import base64
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentlane
from agentlane import ImagePart, InvalidDefinition
from agentlane.tools.workspace import Workspace, WorkspaceLimits
from agentlane.tools.workspace.paths import Refused
from agentlane.tools.workspace.texts import edited, numbered, text_of
from agentlane.tools.workspace.tools import _temporary
from tests.workspace.stub import Ctx, Hands, tree

PNG = b"\x89PNG\r\n\x1a\n\0rest"

# Texts.


@given(st.binary(max_size=30) | st.text(max_size=20).map(lambda text: text.encode("utf-16")))
def test_a_text_encodes_to_the_bytes_it_was_read_of(data: bytes) -> None:
    text = text_of(data)

    assert text is None or text.encode(text.text) == data
    if text is None:
        assert b"\0" in data or data[:2] in (b"\xff\xfe", b"\xfe\xff")


PIECES = st.text(alphabet="ab\n", max_size=6)


@given(PIECES, PIECES, PIECES, PIECES, st.sampled_from(["utf-8", "utf-16", "utf-8-sig", "crlf", "bad"]))
def test_an_edit_changes_one_place_and_no_other_byte(before: str, old: str, after: str, new: str, form: str) -> None:
    encoding = form if form.startswith("utf") else "utf-8"

    def file(text: str) -> bytes:
        if form == "crlf":
            text = text.replace("\n", "\r\n")
        data = text.encode(encoding)
        return data.replace(b"<", b"\xff").replace(b">", b"\xe2\x82") if form == "bad" else data

    whole = f"<{before}[{old}]{after}>\n"
    text = text_of(file(whole))
    assert text is not None

    made = edited(text.text, f"[{old}]", f"({new})", every=False, size_max=99)

    assert text.encode(made.text) == file(f"<{before}({new}){after}>\n")
    assert (made.times, made.line) == (1, before.count("\n") + 1)


@given(st.text(alphabet="ab\n", max_size=12), st.text(alphabet="ab\n", max_size=3), PIECES, st.booleans())
def test_an_edit_needs_its_text_once_or_all_of_them(text: str, old: str, new: str, every: bool) -> None:
    places = [at for at in range(len(text)) if old and text.startswith(old, at)]
    wanted = old and old != new and (places if every else len(places) == 1)

    if not wanted:
        with pytest.raises(Refused):
            edited(text, old, new, every=every, size_max=99)
        return
    made = edited(text, old, new, every=every, size_max=99)
    assert made.text == text.replace(old, new) and made.times == text.count(old)


class Counted(str):
    """A text that cannot be built anew."""

    def replace(self, *given: object) -> str:  # type: ignore[override]
        raise MemoryError


def test_an_edit_is_counted_before_it_is_built_and_writes_no_more_than_the_bound(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="would have 9000 characters, and 8999 bytes can be written"):
        edited(Counted("a" * 900), "a", "b" * 10, every=True, size_max=8_999)
    assert len(edited("a" * 900, "a", "b" * 10, every=True, size_max=9_000).text) == 9_000

    hands = Hands(tmp_path, file_bytes=100)
    for name, data in {
        "many": b"a" * 50,
        "wide": b"a" * 50,
        "marked": b"\xff\xfe" + b"a\0" * 40,
        "fits": b"aaaa",
    }.items():
        (tmp_path / name).write_bytes(data)
    asked = {"old_text": "a", "replace_all": True}
    for path, new, said in (
        ("many", "bbb", "150 characters"),
        ("wide", "\u20ac", "150 bytes"),
        ("marked", "bb", "162 bytes"),
    ):
        before = (tmp_path / path).read_bytes()
        assert f"the file would have {said}, and 100 " in hands("edit_file", path=path, new_text=new, **asked)
        assert (tmp_path / path).read_bytes() == before
    assert hands("edit_file", path="fits", new_text="b" * 25, **asked).startswith("replaced 4 times")


def test_a_place_that_is_not_the_only_one_is_told_with_its_lines() -> None:
    with pytest.raises(Refused, match=r"more than once, on lines 1, 3; give more of the text around it, or set"):
        edited("x\ny\nx\n", "x", "z", every=False, size_max=99)
    with pytest.raises(Refused, match="not in the file; read it, and give the text exactly"):
        edited("x", "q", "z", every=True, size_max=99)
    with pytest.raises(Refused, match="more than once"):
        edited("aaa", "aa", "b", every=False, size_max=99)


def test_lines_are_numbered_bounded_and_told_where_to_go_on() -> None:
    def show(text: str, first: int = 1, lines: int = 9, chars: int = 9, size: int = 999) -> str:
        return numbered(text, first, lines_max=lines, chars_max=chars, bytes_max=size)

    assert show("a\r\n\nb\u2028c\n") == "1\ta\n2\t\n3\tb\u2028c"
    assert show("") == "[the file is empty]" and show("\n") == "1\t"
    assert show("a\nb\nc", lines=2) == "1\ta\n2\tb\n[lines 1 to 2 of 3; go on with start_line=3]"
    assert show("a\nb\nc", first=2, lines=1) == "2\tb\n[lines 2 to 2 of 3; go on with start_line=3]"
    assert show("x" * 20) == "1\txxxxxxxxx [11 characters left out]"
    assert show("é" * 9 + "\nb", size=5) == "1\t" + "é" * 9 + "\n[lines 1 to 1 of 2; go on with start_line=2]"
    with pytest.raises(Refused, match="has 1 lines, and start_line is 2"):
        show("a", first=2)


# Reading.


def test_files_are_shown_as_what_they_are(tmp_path: Path) -> None:
    files = {
        "utf-16": "añ\nb".encode("utf-16"),
        "bom": b"\xef\xbb\xbfa",
        "latin": b"caf\xe9",
        "binary": b"\0\1\2",
        "png": PNG,
        "big": b"x" * 101,
        "big.png": PNG + b"x" * 50,
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    hands = Hands(tmp_path, file_bytes=100, image_bytes=40)

    assert hands("read_file", path="utf-16") == "1\tañ\n2\tb"
    assert hands("read_file", path="bom") == "1\ta"
    assert hands("read_file", path="latin") == "1\tcaf\udce9"  # which a result shows as U+FFFD
    assert hands("read_file", path="binary") == "refused: 'binary' is a binary file of 3 bytes and cannot be shown"
    assert hands("read_file", path="big") == "refused: 'big' has 101 bytes, and 100 can be read"
    assert hands("read_file", path="big.png") == "refused: 'big.png' is a binary file of 63 bytes and cannot be shown"
    assert hands("read_file", path="latin", start_line=0) == "refused: start_line and max_lines are 1 or more"
    shown = asyncio.run(hands.value("read_file", path="png"))
    assert shown.content == [ImagePart(data=base64.b64encode(PNG).decode(), mime_type="image/png")]


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a..", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        (b"RIFF\0\0\0\0WAVE", None),
        (b"%PDF-1.7", None),
        (b"", None),
    ],
)
def test_an_image_is_known_by_its_first_bytes(data: bytes, kind: str | None) -> None:
    part = ImagePart.of(data)

    assert (part and part.mime_type) == kind
    assert part is None or base64.b64decode(part.data) == data
    given_type = ImagePart.of(data, "image/tiff")
    assert given_type is not None and given_type.mime_type == "image/tiff"


# Looking.


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    for name, text in {"b.py": "x = 1\nY = 2\n", "a.txt": "X\n", "sub/c.py": "  x = 3  \n", ".git/d.py": "x\n"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "link").symlink_to("sub")
    (tmp_path / ".agentlane-left-behind").write_text("x")
    (tmp_path / "binary").write_bytes(b"x\0")
    return tmp_path


def test_folders_are_listed_in_order_and_links_not_followed(filled: Path) -> None:
    hands = Hands(filled)

    assert hands("list_files").split("\n") == [
        *(".git/", "a.txt (2 bytes)", "b.py (12 bytes)", "binary (2 bytes)", "link -> sub", "sub/")
    ]
    assert hands("list_files", pattern="*.py", depth=2).split("\n") == ["b.py (12 bytes)", "sub/c.py (10 bytes)"]
    assert hands("list_files", pattern="s*/*.py", depth=2) == "sub/c.py (10 bytes)"
    assert hands("list_files", path="link") == "sub/c.py (10 bytes)"
    assert hands("list_files", pattern="*.rs") == "[nothing fits]"
    assert hands("list_files", path="a.txt") == "refused: 'a.txt' is no folder"


def test_a_text_is_found_with_its_place(filled: Path) -> None:
    hands = Hands(filled)

    assert hands("search_files", text="x").split("\n") == ["b.py:1: x = 1", "sub/c.py:1: x = 3"]
    assert hands("search_files", text="X", ignore_case=True, pattern="*.txt") == "a.txt:1: X"
    assert hands("search_files", text="x", path=".git") == ".git/d.py:1: x"
    assert hands("search_files", text="none") == "[nothing was found]"
    assert hands("search_files", text="") == "refused: text is empty: say what to look for"


def test_a_text_of_two_lines_is_not_said_to_be_nowhere(filled: Path) -> None:
    assert "look for one of its lines" in Hands(filled)("search_files", text="a\nb")


def test_looking_is_bounded_and_says_so(filled: Path) -> None:
    assert "[only the first 2 are listed" in Hands(filled, entries=2)("list_files")
    assert Hands(filled, matches=1)("search_files", text="x").startswith("b.py:1: x = 1\n[only the first 1 are shown")
    assert "[only 3 files and folders were looked at" in Hands(filled, visited=3)("list_files", depth=2)
    assert "[2 files were not read: too large" in Hands(filled, file_bytes=9)("search_files", text="X")
    stopped = Ctx()
    stopped.cancelled = True
    assert Hands(filled)("search_files", stopped, text="x") == "[nothing was found]\n[stopped]"


def test_no_more_than_a_bound_is_read_in_a_search(filled: Path) -> None:
    size = sum(len((filled / name).read_bytes()) for name in ("a.txt", "b.py", "binary", "sub/c.py"))

    assert Hands(filled, searched_bytes=size)("search_files", text="x") == "b.py:1: x = 1\nsub/c.py:1: x = 3"
    assert Hands(filled, searched_bytes=size - 1)("search_files", text="x") == (
        f"b.py:1: x = 1\n[only the first {size - 1} bytes were searched; look in fewer files]"
    )


def test_a_folder_that_cannot_be_opened_is_told_and_one_that_is_gone_is_not(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, raised = os.open, {"sub": errno.EACCES}

    def refusing(path: str, flags: int, *args: int, **kwargs: int) -> int:
        if path in raised:
            raise OSError(raised[path], os.strerror(raised[path]))
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refusing)

    assert Hands(filled)("search_files", text="x") == "b.py:1: x = 1\n[1 folders could not be opened]"
    assert Hands(filled)("list_files", depth=2).endswith("[1 folders could not be opened]")
    assert Hands(filled)("list_files", path="sub") == "refused: 'sub': Permission denied"
    raised["sub"] = errno.ENOENT
    assert Hands(filled)("search_files", text="x") == "b.py:1: x = 1"


def test_a_name_that_is_no_text_is_shown_and_does_no_harm(tmp_path: Path) -> None:
    os.close(os.open(os.fsencode(tmp_path) + b"/bad\xff", os.O_CREAT | os.O_WRONLY))

    assert Hands(tmp_path)("list_files") == "bad\ufffd (0 bytes)"


# Writing.


def test_a_write_makes_folders_keeps_permissions_and_leaves_other_names_alone(tmp_path: Path) -> None:
    hands = Hands(tmp_path)
    (tmp_path / "script").write_text("old")
    (tmp_path / "script").chmod(0o750)
    os.link(tmp_path / "script", tmp_path / "other name")

    assert hands("write_file", path="a/b/new", content="é") == "wrote 2 bytes to a/b/new"
    assert hands("write_file", path="script", content="new") == "wrote 3 bytes to script"

    assert (tmp_path / "a/b/new").read_text() == "é"
    assert (tmp_path / "script").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "other name").read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["a", "other name", "script"]
    assert "3 can be written" in Hands(tmp_path, file_bytes=3)("write_file", path="no/x", content="four")
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("path", ["nd/e/../../../out/q", "nd/../q", "a/nd/../../../q"])
def test_a_path_that_goes_back_makes_no_folder(tmp_path: Path, path: str) -> None:
    (tmp_path / "a").mkdir()

    assert "there is no folder 'nd'" in Hands(tmp_path)("write_file", path=path, content="x")
    assert tree(tmp_path) == {"a": "folder"}
    assert Hands(tmp_path)("write_file", path="a/../nd/f", content="x") == "wrote 1 bytes to nd/f"


def test_a_read_only_file_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hands, file = Hands(tmp_path), tmp_path / "file"
    file.write_text("kept")
    before = file.stat().st_ino
    for mode, may_write in ((0o444, True), (0o644, False)):  # the second: somebody else's
        file.chmod(mode)
        with monkeypatch.context() as patch:
            patch.setattr(os, "access", lambda *_, may_write=may_write, **__: may_write)
            refused = "refused: 'file' is read-only and stays as it is"
            assert hands("write_file", path="file", content="new") == refused
            assert hands("edit_file", path="file", old_text="k", new_text="n") == refused

    assert (file.read_text(), file.stat().st_ino) == ("kept", before) and os.listdir(tmp_path) == ["file"]


def test_what_the_system_refuses_is_told_by_the_path_that_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands = Hands(tmp_path)
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/file").write_text("old")
    long = "x" * 300

    assert hands("read_file", path=long) == f"refused: '{long}': File name too long"

    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        assert hands("write_file", path="a/file", content="new") == "refused: 'a/file': No space left on device"
    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", full)
        assert hands("delete_file", path="a/b") == "refused: 'a/b': No space left on device", "not that it is full"
        assert hands("delete_file", path="a", recursive=True) == (
            "refused: 'a': No space left on device; some of it may be deleted"
        )

    assert tree(tmp_path / "a") == {"b": "folder"}


def test_a_write_that_starts_again_is_done_once_and_never_over_what_others_wrote(tmp_path: Path) -> None:
    hands, file = Hands(tmp_path), tmp_path / "file"
    file.write_text("old")

    died_early, died_late, overtaken = Ctx("1"), Ctx("2"), Ctx("3")
    died_early.memos["before"] = asyncio.run(asyncio.to_thread(hands.workspace._version, "file"))
    assert hands("write_file", died_early, path="file", content="one") == "wrote 3 bytes to file"

    assert hands("write_file", died_late, path="file", content="two") == "wrote 3 bytes to file"
    identity = file.stat().st_ino, file.stat().st_mtime_ns
    assert hands("write_file", died_late, path="file", content="two") == "file holds the content already"
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == identity

    assert hands("write_file", overtaken, path="file", content="three") == "wrote 5 bytes to file"
    file.write_text("a person's")
    assert hands("write_file", overtaken, path="file", content="three") == (
        "refused: 'file' was changed by somebody meanwhile and is left as it is; read it again"
    )
    assert file.read_text() == "a person's"


@pytest.mark.parametrize("now", ["another", "the new", None, "a folder"])
def test_what_a_killed_write_left_is_cleared_by_its_replay_whatever_that_comes_to(
    tmp_path: Path, now: str | None
) -> None:
    hands, ctx, file = Hands(tmp_path), Ctx(), tmp_path / "file"
    file.write_text("the old")
    ctx.memos["before"] = hands.workspace._version("file")
    left = tmp_path / _temporary(ctx)  # type: ignore[arg-type]
    left.write_text("the ne")
    file.unlink()
    if now == "a folder":
        file.mkdir()
    elif now is not None:
        file.write_text(now)

    said = hands("write_file", ctx, path="file", content="the new")

    assert said == "file holds the content already" if now == "the new" else said.startswith("refused: ")
    assert not left.exists() and file.exists() == (now is not None)


def test_a_name_that_is_in_no_list_is_not_written(tmp_path: Path) -> None:
    said = Hands(tmp_path)("write_file", path=".agentlane-1", content="x")

    assert said == "refused: '.agentlane-1': names that begin with .agentlane- are not listed; give another one"
    assert tree(tmp_path) == {}


def test_an_edit_of_what_others_changed_meanwhile_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from agentlane.tools.workspace import tools

    file = tmp_path / "file"
    file.write_text("one two")
    real = tools.edited

    def meanwhile(*args: object, **kwargs: object) -> object:
        file.write_text("one two three")
        return real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(tools, "edited", meanwhile)

    assert "was changed by somebody meanwhile" in Hands(tmp_path)(
        "edit_file", path="file", old_text="two", new_text="2"
    )
    assert file.read_text() == "one two three"


def test_edits_at_once_all_stand(tmp_path: Path) -> None:
    hands = Hands(tmp_path)
    (tmp_path / "file").write_text(" ".join(f"<{n}>" for n in range(20)))

    async def all_at_once() -> list[str]:
        ones = [
            asyncio.to_thread(
                hands.workspace.edit_file,
                Ctx(str(n)),
                "file",
                f"<{n}>",
                f"[{n}]",  # type: ignore[arg-type]
            )
            for n in range(20)
        ]
        return await asyncio.gather(*ones)

    asyncio.run(all_at_once())

    assert (tmp_path / "file").read_text() == " ".join(f"[{n}]" for n in range(20))


def test_deleting(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/file").touch()
    (tmp_path / "empty").mkdir()
    hands = Hands(tmp_path)

    assert hands("delete_file", path="a") == "refused: 'a' is a folder with something in it; set recursive"
    assert hands("delete_file", path="empty") == "deleted empty"
    assert hands("delete_file", path="a/b/file") == "deleted a/b/file"
    assert hands("delete_file", path="a", recursive=True) == "deleted a"
    assert hands("delete_file", path="a") == "refused: 'a': there is no such file"
    for path in (".", "", "x/.."):
        assert hands("delete_file", path=path, recursive=True).startswith("refused: ")
    assert tmp_path.is_dir()


KILLS = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from agentlane.tools.workspace import files
from tests.workspace.stub import Ctx, Hands

folder = Path({folder!r})
file, CALLS = folder / "file", ("open", "write", "fchmod", "fsync", "rename", "unlink", "close", "mkdir")
real = {{name: getattr(os, name) for name in CALLS}}
moment, seen = 0, set()
while True:
    child = os.fork()
    if child == 0:
        calls = 0
        def counted(name):
            def call(*args, **kwargs):
                global calls
                calls += 1
                if calls == moment + 1:
                    if name == "write":
                        real["write"](args[0], bytes(args[1])[:3])
                    os.kill(os.getpid(), signal.SIGKILL)
                return real[name](*args, **kwargs)
            return call
        ctx = Ctx("one call")
        hands = Hands(folder)
        before = hands.workspace._version("file")
        for name in CALLS:
            setattr(os, name, counted(name))
        said = hands.workspace._write("file", b"new content", before, files.TEMPORARY_PREFIX + "x")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    found = file.read_text() if file.exists() else None
    assert found in (None, "old content", "new content"), (moment, found)
    seen.add(found)
    left = [each for each in os.listdir(folder) if each != "file"]
    assert all(each.startswith(".agentlane-") for each in left), left
    assert Hands(folder)("list_files").startswith("file (11") or not file.exists()
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0 and left == []
        break
    file.write_text("old content") if moment % 2 else file.unlink(missing_ok=True)
    moment += 1
print(moment, sorted(map(str, seen)))
"""


def test_a_write_that_is_killed_at_any_call_to_the_system_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    """And the next start of the call clears what it left behind."""
    (tmp_path / "file").write_text("old content")
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": str(Path(agentlane.__file__).parents[1])}
    code = KILLS.format(root=root, folder=str(tmp_path))

    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)

    assert ran.returncode == 0, ran.stderr
    moments, seen = ran.stdout.split(" ", 1)
    assert int(moments) >= 9 and seen.strip() == "['None', 'new content', 'old content']"


# Declaring.


def test_tools_have_the_policies_that_are_true_of_them(tmp_path: Path) -> None:
    found = {each.name: (each.options.replay, each.options.parallel) for each in Workspace(tmp_path).tools()}

    assert found == {
        "list_files": ("safe", True),
        "read_file": ("safe", True),
        "search_files": ("safe", True),
        "write_file": ("idempotent", False),
        "edit_file": ("never", False),
        "delete_file": ("never", False),
        "run_command": ("never", False),
    }


def test_some_of_the_tools_and_some_that_ask(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    only = workspace.tools(["read_file", "run_command"], approval=["run_command"])

    assert [(each.name, each.options.approval) for each in only] == [("read_file", False), ("run_command", True)]
    assert len(workspace.tools()) == 7 and not workspace.tools()[-1].options.approval
    for wrong in ({"only": ["read"]}, {"only": "read_file"}, {"approval": ["none"]}):
        with pytest.raises(InvalidDefinition, match="a list of some of these names is needed: list_files, read_file"):
            workspace.tools(**wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidDefinition, match="entries=0 must be a positive whole number"):
        WorkspaceLimits(entries=0)
