"""The output of a command, of which both ends are kept."""

from __future__ import annotations


class Output:
    """Takes bytes as they come and keeps the first and the last of them: bounded, however many come."""

    def __init__(self, *, bytes_max: int, lines_max: int) -> None:
        self._head_max = bytes_max // 2
        self._tail_max = bytes_max - self._head_max
        self._lines_max = lines_max
        self._head = bytearray()
        self._tail = bytearray()
        self._line_ends = 0
        self.total = 0
        """Bytes that have come."""

    def add(self, chunk: bytes) -> None:
        """Take more."""
        self.total += len(chunk)
        self._line_ends += chunk.count(b"\n")
        room = self._head_max - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        self._tail += chunk
        if len(self._tail) > 2 * self._tail_max:
            del self._tail[: -self._tail_max]

    def text(self) -> str:
        """Both ends, with a mark between them that says what was left out."""
        return self._shown(self._lines_max)

    def latest(self, lines: int) -> str:
        """The last lines."""
        data = (self._head + self._tail if len(self._tail) < self._tail_max else self._tail)[-self._tail_max :]
        return b"\n".join(bytes(data).rstrip(b"\n").split(b"\n")[-lines:]).decode("utf-8", "replace")

    def _shown(self, lines_max: int) -> str:
        tail = bytes(self._tail[-self._tail_max :])
        head = bytes(self._head)
        if len(head) + len(tail) == self.total:
            whole = (head + tail).split(b"\n")
            count = len(whole) - (whole[-1] == b"")
            if count <= lines_max:
                return (head + tail).decode("utf-8", "replace")
            first = lines_max - lines_max // 2
            last = lines_max // 2
            head = b"\n".join(whole[:first]) + b"\n"
            tail = b"\n".join(whole[count - last :]) if last else b""
        else:
            head, tail = _ends_with_line(head), _begins_with_line(tail)
            first, last = lines_max - lines_max // 2, lines_max // 2
            head = b"".join(head.splitlines(keepends=True)[:first]) if head.count(b"\n") > first else head
            lines = tail.split(b"\n")
            count = len(lines) - (lines[-1] == b"")
            tail = b"\n".join(lines[count - last :]) if count > last else tail
        left_out = self.total - len(head) - len(tail)
        lines_out = self._line_ends - head.count(b"\n") - tail.count(b"\n")
        mark = f"[{left_out} bytes left out here, {lines_out} line ends among them]"
        gap = "" if head.endswith(b"\n") or not head else "\n"
        return f"{head.decode('utf-8', 'replace')}{gap}{mark}\n{tail.decode('utf-8', 'replace')}"


def _ends_with_line(data: bytes) -> bytes:
    """The beginning, up to its last line end; without one, up to its last whole character."""
    cut = data.rfind(b"\n") + 1
    return data[:cut] if cut else data.decode("utf-8", "ignore").encode()


def _begins_with_line(data: bytes) -> bytes:
    """The end, from the line behind its first line end on; without one, from its first whole character on."""
    cut = data.find(b"\n") + 1
    if 0 < cut < len(data):
        return data[cut:]
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]
