"""What a process of the kill tests is asked to do, and the lines by which it says how far it is."""

from __future__ import annotations

import os
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

How: TypeAlias = Literal["kill", "held", "exit", "term", "term host", "int"]
"""How a process ends: ``SIGKILL`` that it sends itself, or that its parent sends while it stands still at a boundary;
``os._exit``; ``SIGTERM`` that it does not handle, or handles by closing its session; ``SIGINT``, as Ctrl-C."""

HOWS: tuple[How, ...] = ("kill", "held", "exit", "term", "term host", "int")
CLOSING: frozenset[How] = frozenset({"term host", "int"})
"""The ways to end in which the process closes its session before."""

EXIT_CODE = 7
TERM_CODE = 143
"""What a host returns that was asked to end by ``SIGTERM`` and did."""


class Stop(Struct, frozen=True):
    """A process is ended the ``nth`` time (from 1) that it reaches ``boundary``, the name of one row.

    ``first_closing``: where a thread of the store has reached it, the thread goes on once the session is being closed.
    """

    how: How
    boundary: str
    nth: int = 1
    first_closing: bool = False


class Job(Struct, frozen=True, kw_only=True):
    """What one process is to do: open the session in ``folder``, take over what is there, and do the scenario's work.

    ``gate``: wait for the parent's word before opening, after it, and before ending when told to end. ``broken``: which
    defect the library is given in this process.
    """

    scenario: str
    disk: str
    durability: str
    folder: str
    seed: int
    stops: list[Stop] = []
    hosted: bool = False
    gate: bool = False
    broken: str = ""


class Started(Struct, frozen=True, tag="started"):
    """The process lives and has opened nothing yet."""


class Pended(Struct, frozen=True):
    """A call that was found with its effect pending."""

    call_id: str
    policy: str
    attempt: int
    cancelled: bool


class Opened(Struct, frozen=True, tag="opened"):
    """The session is open; what the process before left under way."""

    generating: list[str]
    pending: list[Pended]


class Refused(Struct, frozen=True, tag="refused"):
    """The session could not be opened."""

    code: str


class Reached(Struct, frozen=True, tag="reached"):
    """A boundary; of a commit that does the work of several rows the names are joined."""

    boundary: str


class Published(Struct, frozen=True, tag="published"):
    """A commit was reported to the process as made: its place, and a checksum of each entry, staged entry and result
    that it holds, by id."""

    first_seq: int
    last_seq: int
    entries: dict[str, int]
    staged: dict[str, int]
    results: dict[str, int]


class Accepted(Struct, frozen=True, tag="accepted"):
    """``accept`` returned."""

    operation_id: str


class Aborting(Struct, frozen=True, tag="aborting"):
    """``request_abort`` returned, and it was in time."""

    operation_id: str


class Said(Struct, frozen=True, tag="said"):
    """A message was queued, or was before, and has this entry."""

    entry_id: str


class Answered(Struct, frozen=True, tag="answered"):
    """An approval was answered."""

    operation_id: str
    approval_id: str
    allow: bool


class Delivered(Struct, frozen=True, tag="delivered"):
    """The result of a call was delivered."""

    call_id: str


class Settled(Struct, frozen=True, tag="settled"):
    """``drive`` returned the operation's result."""

    operation_id: str
    status: str
    text: str


class Stopping(Struct, frozen=True, tag="stopping"):
    """The process ends itself at a boundary; with ``held`` it stands still there, for its parent to end it."""

    how: How
    boundary: str


class Closing(Struct, frozen=True, tag="closing"):
    """The process is about to close its session, whoever told it to."""


class Closed(Struct, frozen=True, tag="closed"):
    """The session is closed; with ``done`` after all work was done."""

    done: bool


Report: TypeAlias = (
    Started
    | Opened
    | Refused
    | Reached
    | Published
    | Accepted
    | Said
    | Answered
    | Delivered
    | Aborting
    | Settled
    | Stopping
    | Closing
    | Closed
)

_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Report)
_JOB = msgspec.json.Decoder(Job)


def tell(descriptor: int, report: Report) -> None:
    """Write one line, at once and whole, from any thread."""
    os.write(descriptor, _ENCODER.encode(report) + b"\n")


def read_report(line: bytes) -> Report:
    return _DECODER.decode(line)


def encode_job(job: Job) -> bytes:
    return _ENCODER.encode(job)


def read_job(text: bytes) -> Job:
    return _JOB.decode(text)


def rows_of(boundary: str) -> list[str]:
    """The rows that a boundary stands for: one for each that a merged commit joins."""
    if not boundary.startswith("commit."):
        return [boundary]
    _, names, part = boundary.split(".")
    return [f"commit.{name}.{part}" for name in names.split("+")]
