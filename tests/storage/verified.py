"""What tests of ``verify`` share: all rows of a salvage, the rows of a model, and whether a folder was left alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from agentlane.data.findings import VerifyReport
from agentlane.data.writes import Write
from agentlane.storage.contract import ElementRow, Row, ValueRow
from agentlane.storage.salvage import Salvage
from agentlane.testing.conformance.model import ReferenceSession


async def rows_of(salvage: Salvage) -> list[Row]:
    try:
        found = [row async for page in salvage.pages() for row in page]
        again = [row async for page in salvage.pages() for row in page]
        assert found == again
        return found
    finally:
        await salvage.close()


def model_rows(model: ReferenceSession) -> list[Row]:
    """What a snapshot of a session like the model gives."""
    return [
        *model.scan(),
        *model.usage(),
        *(
            ElementRow(address, each.seq, each.payload)
            for address in sorted(model.lists_at)
            for each in model.lists_at[address]
        ),
        *(ValueRow(address, model.values_at[address]) for address in sorted(model.values_at)),
    ]


def rows_without(groups: Sequence[Sequence[Write]], lost: set[int], *, at: int) -> list[Row]:
    """The rows of a session of these commits, made at one time, where those that are ``lost`` cannot be read."""
    model, seq = ReferenceSession(), 1
    for number, writes in enumerate(groups):
        if number not in lost:
            model.apply(writes, first_seq=seq, at=at)
        seq += len(writes)
    return model_rows(model)


def counted(report: VerifyReport) -> tuple[int, int, int, int]:
    return report.entries, report.usage_rows, report.elements, report.values


@contextmanager
def left_alone(folder: Path) -> Iterator[None]:
    """Names, bytes, sizes and times of what is in a folder are the same afterwards.

    Of SQLite's index of a log, in which it marks its readers, only that it is there.
    """
    before = _listing(folder)
    yield
    assert _listing(folder) == before


def _listing(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    return {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino)
        if path.suffix != ".db-shm"
        else (b"", 0, 0)
        for path in sorted(folder.iterdir())
        if path.is_file()
    }
