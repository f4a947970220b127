"""Claim: the lock is held exactly as long as its owner lives, and nothing written in its file can change that."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import pickle
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentlane.errors import (
    InvalidDefinition,
    InvalidName,
    OwnershipLost,
    SessionClosed,
    SessionOwned,
    StoreOwned,
    WrongProcess,
)
from agentlane.storage import lock as lock_module
from agentlane.storage.lock import OwnerLock

HOLD = """
import sys
from pathlib import Path
from agentlane.errors import SessionOwned
from agentlane.storage.lock import OwnerLock
try:
    lock = OwnerLock.acquire(Path(sys.argv[1]), error=SessionOwned, what="session 'x'")
except SessionOwned as error:
    print(error, flush=True)
else:
    print("held", flush=True)
    sys.stdin.read()
"""


def hold(path: Path) -> subprocess.Popen[str]:
    """A process that holds the lock, or has said why it does not."""
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def say(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def acquire(path: Path) -> OwnerLock:
    return OwnerLock.acquire(path, error=SessionOwned, what="session 'x'")


def test_file_and_folders_are_for_the_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "x.lock"
    before = os.umask(0o022)
    try:
        lock = acquire(path)
    finally:
        os.umask(before)

    modes = [stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent, path.parent.parent)]
    lock.release()
    assert modes == [0o600, 0o700, 0o700]


def test_a_second_opener_in_the_same_process_is_refused(tmp_path: Path) -> None:
    lock = acquire(tmp_path / "x.lock")

    with pytest.raises(StoreOwned, match="store 'y' is open for writing in this same process since") as refused:
        OwnerLock.acquire(tmp_path / "x.lock", error=StoreOwned, what="store 'y'")

    assert "read-only" in str(refused.value)
    assert refused.value.details["owner"]["pid"] == os.getpid()
    assert pickle.loads(pickle.dumps(refused.value)).details == refused.value.details
    lock.check()
    lock.release()
    acquire(tmp_path / "x.lock").release()


def test_an_opener_in_another_process_is_refused_at_once_and_told_who(tmp_path: Path) -> None:
    lock = acquire(tmp_path / "x.lock")
    other = hold(tmp_path / "x.lock")
    try:
        assert f"open for writing by process {os.getpid()} on" in say(other)
    finally:
        end(other)
        lock.release()


def test_a_killed_holder_is_replaced_at_once(tmp_path: Path) -> None:
    holder = hold(tmp_path / "x.lock")
    try:
        assert say(holder) == "held"
        with pytest.raises(SessionOwned, match=f"by process {holder.pid} on"):
            acquire(tmp_path / "x.lock")
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        acquire(tmp_path / "x.lock").release()
    finally:
        end(holder)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"pid": 1, "host": "here", "since": "2000-01-01T00:00:00Z"}),
        json.dumps({"pid": os.getpid(), "host": "here", "since": "2999-01-01T00:00:00Z"}),
        "garbage\0\xff",
        "[" * 900,
        "",
    ],
)
def test_what_a_lock_file_says_is_no_obstacle(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.lock"
    path.write_text(text)

    lock = acquire(path)

    assert json.loads(path.read_text())["pid"] == os.getpid()
    lock.release()


def test_a_garbled_lock_file_of_a_live_owner_still_refuses(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    lock = acquire(path)
    path.write_text('{"pid": "nonsense"')

    with pytest.raises(SessionOwned, match="by another owner that left no name"):
        acquire(path)

    lock.release()


def test_release_ends_it_once_and_leaves_the_file(tmp_path: Path) -> None:
    lock = acquire(tmp_path / "x.lock")
    lock.release()
    again = acquire(tmp_path / "x.lock")
    lock.release()  # does nothing: it must not release what is another's now

    with pytest.raises(SessionOwned):
        acquire(tmp_path / "x.lock")
    with pytest.raises(SessionClosed):
        lock.check()
    again.release()
    assert (tmp_path / "x.lock").exists()


def test_unlink_removes_the_file_while_it_is_held(tmp_path: Path) -> None:
    lock = acquire(tmp_path / "x.lock")
    lock.release(unlink=True)

    assert not (tmp_path / "x.lock").exists()


def test_unlink_leaves_a_file_that_another_owner_put_there(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    lock = acquire(path)
    path.unlink()
    other = acquire(path)
    lock.release(unlink=True)

    other.check()
    other.release()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_lock_file_that_is_removed_or_replaced_is_ownership_lost(tmp_path: Path, replaced: bool) -> None:
    path = tmp_path / "x.lock"
    lock = acquire(path)
    path.rename(tmp_path / "elsewhere")
    if replaced:
        path.touch()

    with pytest.raises(OwnershipLost, match="removed or replaced"):
        lock.check()
    lock.release()


def test_a_file_replaced_while_it_is_locked_is_locked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.lock"
    real, left = lock_module.fcntl.flock, [3]

    def flock(descriptor: int, how: int) -> None:
        real(descriptor, how)
        if how != lock_module.fcntl.LOCK_UN and left[0]:
            left[0] -= 1
            path.unlink()

    monkeypatch.setattr(lock_module.fcntl, "flock", flock)
    lock = acquire(path)
    lock.check()
    lock.release()

    left[0] = 1000
    with pytest.raises(OwnershipLost, match="replaced 16 times"):
        acquire(path)


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("text")
    (tmp_path / "x.lock").symlink_to(tmp_path / "precious")

    with pytest.raises(InvalidName, match="its lock file belongs at .*x.lock, where a folder, a link, a pipe"):
        acquire(tmp_path / "x.lock")
    assert (tmp_path / "precious").read_text() == "text"


@pytest.mark.parametrize("kind", ["folder", "pipe", "socket"])
def test_what_is_no_file_is_no_lock_file_and_stays(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is not waited for: nobody writes to the pipe."""
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    match kind:
        case "folder":
            Path("x.lock").mkdir()
        case "pipe":
            os.mkfifo("x.lock")
        case _:
            with socket.socket(socket.AF_UNIX) as made:
                made.bind("x.lock")
    before = Path("x.lock").lstat()

    with pytest.raises(
        InvalidName, match="its lock file belongs at .*x.lock, .*; remove that, or choose another place"
    ):
        acquire(tmp_path / "x.lock")

    assert Path("x.lock").lstat().st_ino == before.st_ino and Path("x.lock").lstat().st_mode == before.st_mode


def test_a_forked_child_is_refused_and_leaves_the_lock_to_its_parent(tmp_path: Path) -> None:
    script = """
import os, sys
from pathlib import Path
from agentlane.errors import SessionOwned, WrongProcess
from agentlane.storage.lock import OwnerLock
path = Path(sys.argv[1])
lock = OwnerLock.acquire(path, error=SessionOwned, what="session 'x'")
child = os.fork()
if child == 0:
    try:
        lock.check()
    except WrongProcess as error:
        print("child refused" if str(lock.owner_pid) in str(error) else error)
    lock.release(unlink=True)
    sys.stdout.flush()
    os._exit(0)
os.waitpid(child, 0)
lock.check()
try:
    OwnerLock.acquire(path, error=SessionOwned, what="session 'x'")
except SessionOwned:
    print("parent holds")
child = os.fork()
if child == 0:
    sys.stdin.read()  # a child that lives on must not keep the lock alive
    os._exit(0)
lock.release()
OwnerLock.acquire(path, error=SessionOwned, what="session 'x'")
print("free")
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "x.lock")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.split("\n") == ["child refused", "parent holds", "free", ""]


def test_a_lock_that_is_collected_leaves_no_descriptor_to_a_forked_child(tmp_path: Path) -> None:
    lock = acquire(tmp_path / "x.lock")
    del lock
    gc.collect()
    child = os.fork()
    if child == 0:
        time.sleep(60)  # a child that lives on must not keep the lock alive
        os._exit(0)
    try:
        acquire(tmp_path / "x.lock").release()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


class Owner:
    """One that lets go when it is asked to."""

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        self.lock = acquire(path)
        self.lock.belongs_to(loop, self.let_go)

    def let_go(self) -> None:
        self.lock.release()


def test_an_owner_is_replaced_once_its_loop_is_closed_and_not_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.new_event_loop()
    owner = Owner(tmp_path / "x.lock", loop)
    with pytest.raises(SessionOwned):
        acquire(tmp_path / "x.lock")
    loop.close()
    other = hold(tmp_path / "x.lock")
    try:
        assert f"by process {os.getpid()} on" in say(other)  # another process knows nothing of loops
    finally:
        end(other)

    again = acquire(tmp_path / "x.lock")

    assert not owner.lock.held and again.held
    assert "session 'x' was not closed before its event loop was" in caplog.text
    again.release()


def test_check_process_is_wrong_process_in_a_child_only(tmp_path: Path) -> None:
    lock = acquire(tmp_path / "x.lock")
    lock.check_process()
    lock._after_fork()

    with pytest.raises(WrongProcess):
        lock.check_process()


def test_a_platform_without_file_locks_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "fcntl", None)

    with pytest.raises(InvalidDefinition, match="MemoryStore"):
        acquire(tmp_path / "x.lock")
