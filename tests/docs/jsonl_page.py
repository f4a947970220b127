"""A reader of JSONL session files that knows of them what `docs/reference/jsonl-format.md` says, and nothing else.

Nothing of the library is imported here. Where a file is not as the page says, it fails.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any, NamedTuple


class Read(NamedTuple):
    """All of a session, as its file tells it."""

    session_id: str
    created_at: int
    metadata: Any
    entries: list[tuple[str, str | None, int, int, str, Any]]
    usage: list[tuple[int, int, Any]]
    values: dict[tuple[str, str], Any]
    lists: dict[tuple[str, str], list[tuple[int, Any]]]
    last_seq: int
    epoch: int
    operations: list[Any]


def record(line: bytes) -> dict[str, Any]:
    """One line without its newline: "Every line"."""
    assert line[:6] == b'{"k":"' and line[14:16] == b'",', line[:20]
    digits = line[6:14].decode()
    assert digits == digits.lower() and int(digits, 16) == zlib.crc32(line[16:])
    found: dict[str, Any] = json.loads(line)
    if "p" in found:
        head = line.index(b'],"p":[') + len(b'],"p":[')
        lengths = [write[LENGTH_AT[write[0]]] for write in found["w"] if write[0] in LENGTH_AT]
        payloads, at = line[head:-2], 0
        for length, payload in zip(lengths, found["p"], strict=True):
            assert json.loads(payloads[at : at + length]) == payload
            at += length + 1
        assert at == len(payloads) + (1 if lengths else 0) and line.endswith(b"]}")
    return found


LENGTH_AT = {"e": 3, "u": 1, "s": 3, "a": 3}


def read(path: Path) -> Read:
    """The whole file: the header, a base if there is one, and every commit."""
    data = path.read_bytes()
    assert data.endswith(b"\n")
    lines = data.split(b"\n")[:-1]
    offsets = [sum(len(each) + 1 for each in lines[:index]) for index in range(len(lines))]
    header, *rest = [record(line) for line in lines]
    assert header["agentlane"] == (2 if "b" in header else 1) and header.get("b", True) is True
    assert path.name == f"{header['s']}.jsonl"
    state = _State(header)
    in_base, number = "b" in header, 0
    for offset, line in zip(offsets[1:], rest, strict=True):
        if in_base:
            count, session_id, *end = line["b"]
            assert (count, session_id) == (number, header["s"]) and "c" not in line
            number += 1
            state.take(line, None, None)
            if end:
                in_base = False
                state.last_seq, state.epoch, state.operations = end[0]
                state.said_at = offset
        else:
            assert "b" not in line
            state.commit(line, offset)
    assert not in_base
    return Read(
        header["s"],
        header["t"],
        header["m"],
        state.entries,
        state.usage,
        state.values,
        {address: elements for address, elements in state.lists.items() if elements},
        state.last_seq,
        state.epoch,
        state.operations,
    )


class _State:
    def __init__(self, header: dict[str, Any]) -> None:
        self.session_id = header["s"]
        self.entries: list[tuple[str, str | None, int, int, str, Any]] = []
        self.usage: list[tuple[int, int, Any]] = []
        self.values: dict[tuple[str, str], Any] = {}
        self.lists: dict[tuple[str, str], list[tuple[int, Any]]] = {}
        self.last_seq = self.epoch = self.said_at = 0
        self.operations: list[Any] = []

    def commit(self, line: dict[str, Any], offset: int) -> None:
        first, at, session_id, epoch, operations, *synced = line["c"]
        assert first == self.last_seq + 1 and session_id == self.session_id and epoch >= self.epoch
        assert all(0 <= each <= offset for each in synced)
        if isinstance(operations, int):
            assert operations == self.said_at
        else:
            self.operations, self.said_at = operations, offset
        self.take(line, first, at)
        self.last_seq, self.epoch = first + len(line["w"]) - 1, epoch

    def take(self, line: dict[str, Any], seq: int | None, at: int | None) -> None:
        """The writes of a line. In a base the numbers come by ``g``, and values have none."""
        in_base, payloads, before = seq is None, iter(line["p"]), ""
        for tag, *rest in line["w"]:
            number, time = seq or 0, at or 0
            if tag == "g":
                seq, at = rest[0], (rest[1] if len(rest) > 1 else None)
                continue
            if tag == "e":
                id, kind, _, *parent = rest
                if isinstance(id, int):
                    id = before[:-4] + f"{id:04x}"
                self.entries.append((id, parent[0] if parent else before, number, time, kind, next(payloads)))
                before = id
            elif tag == "u":
                self.usage.append((number, time, next(payloads)))
            elif tag == "s":
                self.values[rest[0], rest[1]] = next(payloads)
            elif tag == "d":
                self.values.pop((rest[0], rest[1]), None)
            elif tag == "a":
                self.lists.setdefault((rest[0], rest[1]), []).append((number, next(payloads)))
            else:
                assert tag == "x", tag
                self.lists.pop((rest[0], rest[1]), None)
            if not (in_base and tag == "s"):
                seq = number + 1
        assert next(payloads, None) is None
