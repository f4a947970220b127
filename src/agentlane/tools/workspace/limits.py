"""How much the tools of a workspace read, show, keep and wait for."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import asdict

from agentlane import InvalidDefinition


class WorkspaceLimits(Struct, frozen=True, kw_only=True):
    """Bounds of a ``Workspace``: sizes in bytes, times in milliseconds, each a positive whole number.

    - ``file_bytes``: files larger than this are not read, searched, edited or written
    - ``read_bytes``, ``read_lines``, ``line_chars``: what one ``read_file`` shows of a text, and of one line
    - ``image_bytes``: the largest image that ``read_file`` shows as one
    - ``entries``: what ``list_files`` lists; ``matches``: what ``search_files`` finds
    - ``visited``: the files and folders that one of them looks at; ``depth``: how deep they and paths go;
      ``searched_bytes``: how much ``search_files`` reads in all
    - ``output_bytes``, ``output_lines``: what is kept of a command's output, half from each end
    - ``output_total_bytes``: a command that writes more than this is stopped
    - ``command_ms``: how long a command may run, whatever it asks for; ``stop_ms``: between SIGTERM and SIGKILL
    """

    file_bytes: int = 16 << 20
    read_bytes: int = 64 << 10
    read_lines: int = 2_000
    line_chars: int = 2_000
    image_bytes: int = 2 << 20
    entries: int = 1_000
    matches: int = 200
    visited: int = 100_000
    depth: int = 64
    searched_bytes: int = 1 << 30
    output_bytes: int = 32 << 10
    output_lines: int = 400
    output_total_bytes: int = 64 << 20
    command_ms: int = 600_000
    stop_ms: int = 500

    def __post_init__(self) -> None:
        for key, value in asdict(self).items():
            if type(value) is not int or value < 1:
                raise InvalidDefinition(f"WorkspaceLimits: {key}={value!r} must be a positive whole number")
