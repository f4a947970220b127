"""Runs the suite in two processes side by side: ``python tests/side_by_side.py [OPTIONS OF PYTEST]``.

One half is shown as it goes, the other once it is over; the exit code is that of the half that went worse. Where paths
are asked for, or on one core, it is one process. The halves make their files in memory, if there is room.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent
FIRST = ("cases", "crash", "docs", "hooks", "session", "storage")
"""The folders of one half; the other has the rest. They take about as long as each other."""
NONE_COLLECTED = 5
MEMORY = Path("/dev/shm")
ROOM_BYTES = 4 << 30
PATIENCE_S = 10


def halves(folders: Sequence[str]) -> tuple[list[str], list[str]]:
    """What each half leaves to the other, as options of pytest."""
    first = [f"--ignore=tests/{name}" for name in folders if name not in FIRST]
    return first, [f"--ignore=tests/{name}" for name in FIRST]


def names_a_path(arguments: Sequence[str]) -> bool:
    """Whether some tests are asked for, and not all."""
    return any(not each.startswith("-") and (TESTS.parent / each.partition("::")[0]).exists() for each in arguments)


def worse(codes: Sequence[int]) -> int:
    """The exit code of all halves: a half that has none of the tests that are asked for is no failure."""
    return max((code for code in codes if code != NONE_COLLECTED), default=NONE_COLLECTED, key=abs)


def in_memory() -> str | None:
    """A folder whose files are in memory, where there is one and it has room."""
    roomy = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM_BYTES
    return str(MEMORY) if roomy else None


def end(part: subprocess.Popen[Any]) -> None:
    """End a half that goes on as Ctrl-C does, so that it ends what it has started; and all of it that is left then."""
    if part.poll() is None:
        part.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            part.wait(PATIENCE_S)
    with suppress(ProcessLookupError):
        os.killpg(part.pid, signal.SIGKILL)
    part.wait()


def main(arguments: Sequence[str]) -> int:
    """Run the tests; the exit code of pytest."""
    command = [sys.executable, "-m", "pytest", *arguments]
    if names_a_path(arguments) or (os.cpu_count() or 1) < 2:
        return subprocess.run(command, cwd=TESTS.parent, check=False).returncode
    shown, later = halves(sorted(path.name for path in TESTS.iterdir() if path.is_dir()))
    left = tempfile.TemporaryDirectory(dir=in_memory(), ignore_cleanup_errors=True)
    with tempfile.TemporaryFile() as output, left as files:
        environment = os.environ | {"TMPDIR": files}
        options: dict[str, Any] = {"cwd": TESTS.parent, "env": environment, "start_new_session": True}
        silent = [*command, "-p", "no:cacheprovider", *later]
        parts = [
            subprocess.Popen([*command, *shown], **options),
            subprocess.Popen(silent, stdout=output, stderr=subprocess.STDOUT, **options),
        ]
        try:
            codes = [part.wait() for part in parts]
        finally:
            for part in parts:
                end(part)
        output.seek(0)
        sys.stdout.flush()
        for piece in iter(lambda: output.read(1 << 16), b""):
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    return worse(codes)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the files go, and the other half
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
