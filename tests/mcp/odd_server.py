"""A server that speaks the protocol by hand, and badly where its argument says so: ``odd_server.py HOW``."""

import json
import os
import sys
from typing import Any

TOOL: dict[str, Any] = {"name": "x", "description": "d", "inputSchema": {"type": "object", "properties": {}}}
ODD_TOOLS = [
    TOOL,
    TOOL,
    {"name": "bare"},
    {"name": "says nothing", "inputSchema": {}},
    {"name": "list", "inputSchema": {"type": "array"}},
    {"inputSchema": {"type": "object"}},
    {"name": "endless", "inputSchema": {"type": "object", "default": float("inf")}},
    {"name": "日本", "inputSchema": {"type": "object"}},
    "none",
]
BEFORE_ANSWERS = {
    "logs": b'a line of a log\n[]\n{"jsonrpc":\n\n\xff\xfe\n{"jsonrpc":"2.0","id":99,"result":{}}\n',
    "asks": b'{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage","params":{"messages":[],"maxTokens":1}}\n'
    b'{"jsonrpc":"2.0","id":8,"method":"ping"}\n{"jsonrpc":"2.0","method":"notifications/unheard"}\n'
    b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"hey"}}\n',
}
FINE = b'{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"fine"}]}}\n'
ANSWERS = {
    "half a pair": FINE.replace(b"fine", rb"a\ud800 b\ud83d\ude00"),
    "no result": b'{"jsonrpc":"2.0","id":ID,"result":"text"}\n',
    "unknown part": b'{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"hologram"}]}}\n',
}


def answer_to(message: dict[str, Any], how: str) -> dict[str, Any] | None:
    """What every server says, but to calls."""
    match message["method"]:
        case "server/discover":
            return {"error": {"code": -32601, "message": "no such method"}}
        case "initialize":
            about = {"serverInfo": {"name": "odd", "version": "1"}, "capabilities": {"tools": {}}}
            return {"result": {"protocolVersion": "2025-06-18", **about}}
        case "tools/list":
            return {"result": {"tools": ODD_TOOLS if how == "odd tools" else [TOOL]}}
    return None


def main(how: str) -> None:
    if how == "floods":
        os.write(2, b"x" * 1_000_000)
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        answer = answer_to(message, how)
        if answer is not None:
            line = json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}) + "\n"
            sys.stdout.buffer.write(line.encode())
        elif how == "dies":
            os.write(1, b'{"jsonrpc":"2.0","id":')
            return
        elif how == "closes":
            os.close(1)
            continue
        else:
            id = str(message["id"]).encode()
            sys.stdout.buffer.write(BEFORE_ANSWERS.get(how, b"") + ANSWERS.get(how, FINE).replace(b"ID", id))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1])
