"""A process that has imported everything and forks a child for each job: ``zygote.py DESCRIPTOR``.

The descriptor is a socket. A job comes as its length and its text, with the child's two descriptors: where it reports
to, and the gate it waits at. The answers are lines: ``began PID``, and ``ended PID STATUS`` as ``waitpid`` tells it. A
child leaves as any program does, so what keeps an interpreter from exiting keeps it too; see ``leave``.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import os
import select
import signal
import socket
import sys
import tempfile
import threading
from typing import NoReturn

from tests.kills.life import DISKS, SIGNALS, Life, live
from tests.kills.reports import Job, read_job

JOB_BYTES_MAX = 1 << 16


def warm() -> None:
    """Live once on each disk: what is imported and looked up at the first use only is there for all children."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for disk in DISKS:
        with tempfile.TemporaryDirectory() as folder:
            job = Job(scenario="mixed", disk=disk, durability="process", folder=folder, seed=0)
            asyncio.run(Life(job, nowhere, nowhere).run())
    os.close(nowhere)


def serve(parent: socket.socket) -> tuple[bytes, list[int]] | None:
    """Fork and reap until the parent goes (None), or this is a child: the text of its job, and its descriptors."""
    children: set[int] = set()
    # What is imported stays as it is: no child's collector walks through it, and copies it by that.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    # A child that is not itself yet must not die of what is meant for it in our name: it lets them in when it is.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    woken, wake = os.pipe()
    for each in (woken, wake):
        os.set_blocking(each, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    while True:
        ready, _, _ = select.select([parent.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _reap(parent, children)
        if parent.fileno() not in ready:
            continue
        text, descriptors, _, _ = socket.recv_fds(parent, JOB_BYTES_MAX, 2)
        if not text:
            for child in children:
                os.kill(child, signal.SIGKILL)
            return None
        child = os.fork()
        if child == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(woken)
            os.close(wake)
            return text, descriptors
        for each in descriptors:
            os.close(each)
        children.add(child)
        parent.sendall(f"began {child}\n".encode())


def _reap(parent: socket.socket, children: set[int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        children.discard(pid)
        parent.sendall(f"ended {pid} {status}\n".encode())


def leave(code: int) -> NoReturn:
    """End this process as the interpreter does, but for taking apart what was imported.

    Threads are waited for, exit functions run, and what nobody holds any more goes, and says what it has to say. Then
    an interpreter frees each module, by which a forked one copies all of them first: the greater part of a short life.
    Children with interpreters of their own end by themselves, and so do those that are interrupted.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    warm()
    with socket.socket(fileno=int(sys.argv[1])) as parent:
        given = serve(parent)
    if given is not None:
        text, (reports, gate) = given
        leave(live(read_job(text), reports, gate))
