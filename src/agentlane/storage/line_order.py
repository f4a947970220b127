"""Commits of a session file that stand at another place than their numbers say: which they are."""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from agentlane.storage.damaged_lines import regions
from agentlane.storage.framing import decode_envelope, intact, is_base
from agentlane.storage.jsonl_file import JsonlFile
from agentlane.storage.jsonl_reader import PAUSE_BYTES


class Misplaced(NamedTuple):
    """A whole commit out of its place. ``again``: one of its number stands where it belongs, behind this one."""

    first_seq: int
    number: int
    offset: int
    end: int
    again: bool


async def misplaced(file: JsonlFile) -> deque[Misplaced]:
    """The fewest commits without which the numbers of all others rise from line to line, by their own numbers.

    The event loop gets a turn now and then.
    """
    numbers, offsets, ends, seqs = array("q"), array("q"), array("q"), array("q")
    rising = True
    paused = 0
    for number, (offset, end, line) in enumerate(regions(file), 1):
        if offset - paused > PAUSE_BYTES:
            paused = offset
            await asyncio.sleep(0)
        if line is None or not intact(line) or is_base(line):
            continue
        try:
            envelope = decode_envelope(line)
        except msgspec.DecodeError:
            continue
        if envelope.session_id == file.session_id:
            rising = rising and (not seqs or envelope.first_seq > seqs[-1])
            for each, value in zip(
                (numbers, offsets, ends, seqs), (number, offset, end, envelope.first_seq), strict=True
            ):
                each.append(value)
    if rising:
        return deque()
    kept = set(_longest_rising(seqs))
    there = {seqs[row]: row for row in kept}
    found = [
        Misplaced(seqs[row], numbers[row], offsets[row], ends[row], seqs[row] in there)
        for row in range(len(seqs))
        if row not in kept and there.get(seqs[row], row) >= row  # what comes again behind its place is met there
    ]
    return deque(sorted(found, key=lambda each: (each.first_seq, each.offset)))


def _longest_rising(numbers: array[int]) -> Iterator[int]:
    """The places of a longest run of rising numbers, last one first (patience sorting)."""
    lowest: list[int] = []  # the lowest number that a run of each length ends with
    at: list[int] = []  # and its place
    before = array("q")
    for place, number in enumerate(numbers):
        length = bisect_left(lowest, number)
        before.append(at[length - 1] if length else -1)
        if length == len(lowest) or number < lowest[length]:  # of one number the first counts
            lowest[length : length + 1] = [number]
            at[length : length + 1] = [place]
    place = at[-1] if at else -1
    while place >= 0:
        yield place
        place = before[place]
