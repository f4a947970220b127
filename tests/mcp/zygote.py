"""Makes processes for the tests by forking: ``zygote.py SOCKET``. The SDK is imported once, and not once for each.

Who connects to SOCKET hands over three descriptors, to be the process's input, output and errors, and its arguments and
environment as JSON. The connection ends when the process does, and the process when the connection does. Who asks with
``tell`` is told the process's number first: the end of the connection comes a moment before that of the process.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import socket
import sys
import threading
import traceback

from client_main import run
from server_main import serve


def main(path: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()
    gc.freeze()  # else each process copies what it only looks at
    os.write(1, b"ready")
    while True:
        asked, _ = listening.accept()
        data, descriptors, _, _ = socket.recv_fds(asked, 1 << 16, 3)
        wanted = json.loads(data)
        pid = os.fork()
        if pid == 0:
            listening.close()
            become(wanted, descriptors, asked)
        if wanted.get("tell"):
            asked.sendall(f"{pid}\n".encode())
        for each in descriptors:
            os.close(each)
        asked.close()


def become(asked: dict[str, list[str] | dict[str, str]], descriptors: list[int], held: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.setsid()
    os.environ.update(asked["environment"])
    os.chdir(os.environ.get("FOLDER", "."))
    threading.Thread(target=end_with, args=[held], daemon=True).start()
    what, *arguments = asked["arguments"]
    try:
        match what:
            case "run":
                run(arguments)
            case "script":
                sys.argv, sys.executable = arguments[1:], arguments[0]
                runpy.run_path(arguments[1], run_name="__main__")
                sys.stdout.flush()
            case _:
                serve([what, *arguments])
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def end_with(held: socket.socket) -> None:
    held.recv(1)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
