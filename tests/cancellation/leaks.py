"""What must not be left when a test's loop has ended: warnings, lost errors, tasks, threads and open files."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.cancellation.watched import TickingLoop

T = TypeVar("T")

END_TICKS_MAX = 20
"""In how many turns of the loop everything must be gone that was told to end."""
JOIN_S = 10.0
"""How long a thread that was told to end may take; it is waited for, never slept for."""


def run_clean(main: Callable[[], Coroutine[Any, Any, T]], folder: Path) -> T:
    """Run ``main`` on a loop of its own; AssertionError for anything that it leaves behind, files of ``folder`` too."""
    try:
        return _run_clean(main, folder)
    except BaseException as error:
        error.add_note(f"in {folder}")
        raise


def _run_clean(main: Callable[[], Coroutine[Any, Any, T]], folder: Path) -> T:
    with _warned() as found:
        threads = set(threading.enumerate())
        with asyncio.Runner(loop_factory=TickingLoop) as runner:
            runner.get_loop().set_exception_handler(lambda _, context: found.append(_said(context)))
            value = runner.run(_then_alone(main, found))
        for thread in set(threading.enumerate()) - threads:
            thread.join(JOIN_S)
            if thread.is_alive():
                found.append(f"a thread was left behind: {thread.name}")
        gc.collect()
        found += [f"a file was left open: {name}" for name in _open_files(folder)]
    assert not found, "\n".join(found)
    return value


async def _then_alone(main: Callable[[], Coroutine[Any, Any, T]], found: list[str]) -> T:
    value = await main()
    for _ in range(END_TICKS_MAX):
        if len(asyncio.all_tasks()) == 1:
            break
        await asyncio.sleep(0)
    found += [f"a task was left behind: {task!r}" for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    return value


@contextmanager
def _warned() -> Iterator[list[str]]:
    """What is warned of or lost in the meantime, as texts."""
    found: list[str] = []
    hook = sys.unraisablehook
    sys.unraisablehook = lambda lost: found.append(f"lost in {lost.object!r}: {lost.exc_value!r}")
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield found
        found += [f"warned: {each.message}" for each in warned]
    finally:
        sys.unraisablehook = hook


@contextmanager
def collecting_little() -> Iterator[None]:
    """Until the end, a garbage collection looks only at what was made since: it costs next to nothing."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _said(context: dict[str, Any]) -> str:
    return f"told the loop: {context.get('message')}: {context.get('exception')!r}"


def _open_files(folder: Path) -> list[str]:
    """Files in ``folder`` that this process has open, where the system tells."""
    place = Path("/proc/self/fd")
    if not place.is_dir():
        return []
    found = []
    for each in os.listdir(place):
        try:
            target = os.readlink(place / each)
        except OSError:
            continue  # the descriptor of the listing itself
        if target.startswith(f"{folder}/"):
            found.append(target)
    return found
