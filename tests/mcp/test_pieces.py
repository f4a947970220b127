"""Claim: names, policies and failures of HTTP are decided by what they are alone, the same at every start."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import httpcore2
import httpx2
import mcp_types
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import MCPError

from agentlane import InvalidDefinition, InvalidName, ReplayPolicy, RetryPolicy, ToolCallPart, ToolOptions
from agentlane.driver.tool_results import seal_value
from agentlane.mcp import HttpServer, StdioServer
from agentlane.mcp.calling import RemoteCall
from agentlane.mcp.declaring import NAME_LENGTH_MAX, checked_prefix, hinted_policy, shown_name
from agentlane.mcp.failures import text_of
from agentlane.mcp.results import result_of
from agentlane.mcp.wire import Handover, HttpTransport

WORDS = st.text("ab_-. ü", min_size=1, max_size=6) | st.sampled_from(["b" * 61, "b" * 62, "b" * 80, "_" * 40])
PREFIXES = st.sampled_from(["a", "b", "-", "a-b", "a_b", "a_b_a", "b_a", "a" * 32])


@given(st.lists(st.tuples(PREFIXES, WORDS), min_size=2, max_size=12, unique=True))
def test_no_two_tools_of_any_servers_get_one_name_and_every_provider_takes_it(pairs: list[tuple[str, str]]) -> None:
    names = [shown_name(checked_prefix(prefix, "x"), name) for prefix, name in pairs]

    assert len(set(names)) == len(names), sorted(zip(names, pairs, strict=True))
    for name in names:
        assert 0 < len(name) <= NAME_LENGTH_MAX and all(
            each.isascii() and (each.isalnum() or each in "_-") for each in name
        )


@pytest.mark.parametrize(
    "pairs",
    [
        [("a", "b_x"), ("a_b", "x")],
        [("a", "b__x"), ("a_b", "_x"), ("a", "b_x")],
        [("a", "x.y"), ("a", "x y"), ("a", "x_y")],
        [("a", "x" * 61), ("a", "x" * 62), ("a", "x" * 63)],
        [("s", "a b"), ("s", "a_b_c8687a08"), ("s", "a_b_c8687a08 ")],
    ],
)
def test_names_that_could_be_taken_for_each_other_are_not(pairs: list[tuple[str, str]]) -> None:
    names = {shown_name(checked_prefix(prefix, "x"), name) for prefix, name in pairs}

    assert len(names) == len(pairs), names


@pytest.mark.parametrize("prefix", ["a__b", "_a", "a_", "a b", "ä", "a" * 33])
def test_a_prefix_that_could_make_names_alike_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidDefinition, match="prefix="):
        StdioServer("t", "x", prefix=prefix)
    with pytest.raises(InvalidName):
        StdioServer("", "x", prefix="a")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"trust": True}, "no option 'trust'"),
        ({"timeout_ms": 0}, "timeout_ms=0"),
        ({"start_timeout_ms": 0}, "start_timeout_ms=0"),
        ({"retry": RetryPolicy(attempts=0)}, "retry.attempts=0"),
        ({"options": {"x": {"replay": "safe"}}}, "must be a ToolOptions"),
        ({"options": {"x": ToolOptions(replay="sometimes")}}, "replay='sometimes'"),
    ],
)
def test_options_that_cannot_work_are_refused_at_once(options: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidDefinition, match=word):
        StdioServer("t", "x", **options)


@pytest.mark.parametrize(
    ("read_only", "idempotent", "destructive", "policy"),
    [
        (None, None, None, "never"),
        (True, None, None, "safe"),
        (True, True, False, "safe"),
        (True, None, True, "never"),
        (False, True, None, "idempotent"),
        (None, True, False, "idempotent"),
        (None, True, True, "ask"),
        (False, False, False, "never"),
    ],
)
def test_hints_of_a_trusted_server(
    read_only: bool | None, idempotent: bool | None, destructive: bool | None, policy: ReplayPolicy
) -> None:
    hints = mcp_types.ToolAnnotations(
        read_only_hint=read_only, idempotent_hint=idempotent, destructive_hint=destructive
    )

    assert hinted_policy(mcp_types.Tool(name="x", input_schema={"type": "object"}, annotations=hints)) == policy


def test_one_odd_number_of_a_server_costs_neither_its_text_nor_the_rest() -> None:
    deep: Any = "end"
    for _ in range(100):
        deep = [deep]
    answer = mcp_types.CallToolResult(
        content=[mcp_types.TextContent(text="did it")],
        structured_content={
            "wei": 2**80,
            "least": -(2**63),
            "most": 2**64 - 1,
            "odd": [math.nan, -math.inf],
            "deep": deep,
        },
    )

    sealed = seal_value(ToolCallPart(id="c", name="t", arguments={}), result_of(answer), 10_000).message

    assert (sealed.text, sealed.is_error) == ("did it", False)
    kept = sealed.details["structured"]
    assert kept.pop("deep").__repr__().count("[") == 100
    assert kept == {"wei": str(2**80), "least": -(2**63), "most": 2**64 - 1, "odd": ["nan", "-inf"]}

    many = mcp_types.CallToolResult(content=[], structured_content={"n": [0] * 1_000_001})
    sealed = seal_value(ToolCallPart(id="c", name="t", arguments={}), result_of(many), 10_000_000).message
    assert sealed.details is None and sealed.text.endswith("[details left out: more than 500000 values]")
    assert not sealed.is_error


async def test_what_a_refusal_says_is_told_whatever_its_data() -> None:
    asked = RemoteCall(server=HttpServer("t", "http://x"), tool="t", arguments={}, context=Any, repeatable=bool)  # type: ignore[arg-type]
    refused = asked._refused(MCPError(-32042, "not on a Monday", {"n": 2**80}), Handover())

    sealed = seal_value(ToolCallPart(id="c", name="t", arguments={}), refused, 10_000).message

    assert sealed.text == "The server 't' refused the call: not on a Monday (error -32042)."
    assert sealed.details == {"code": -32042, "message": "not on a Monday", "data": {"n": str(2**80)}}


def raising(error: Exception) -> Callable[[httpx2.Request], httpx2.Response]:
    def answer(request: httpx2.Request) -> httpx2.Response:
        raise error

    return answer


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (raising(httpx2.ConnectError("refused")), "not_begun"),
        (raising(httpx2.ConnectTimeout("slow")), "not_begun"),
        (raising(httpx2.PoolTimeout("busy")), "not_begun"),
        (raising(httpx2.ReadError("cut")), "lost"),
        (raising(httpx2.RemoteProtocolError("cut")), "lost"),
        (raising(httpx2.WriteError("cut")), "lost"),
        (lambda _: httpx2.Response(401), "not_begun"),
        (lambda _: httpx2.Response(429), "not_begun"),
        (lambda _: httpx2.Response(404), "not_begun"),
        (lambda _: httpx2.Response(500), None),
        (lambda _: httpx2.Response(200, json={}), None),
    ],
)
async def test_what_is_known_of_a_request_by_its_failure(
    answer: Callable[[httpx2.Request], httpx2.Response], what: str | None
) -> None:
    transport = HttpTransport(
        "http://x/mcp", headers={}, auth=None, options={"transport": httpx2.MockTransport(answer)}
    )
    async with transport._client as client:
        request = client.build_request("POST", "http://x/mcp", json={}, headers={"mcp-session-id": "s"})
        try:
            before: object = (await client.send(request)).status_code
        except httpx2.TransportError as error:
            before = error
        transport.settled()
        response = await client.send(request)

    if what is None:
        assert response.status_code == before
    else:
        assert response.json()["error"]["data"] == {"agentlane": what}
        assert isinstance(before, Exception | int), "a handshake sees what happened"


def test_certificates_are_read_once_and_as_the_application_says(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bool] = []
    real = httpcore2.default_ssl_context

    def counted(*, _trust_env: bool = True) -> Any:
        read.append(_trust_env)
        return real(_trust_env=_trust_env)

    monkeypatch.setattr(httpcore2, "default_ssl_context", counted)
    usual = HttpServer("t", "https://x/mcp")
    for _ in range(3):
        usual.transport()
    assert read == [True]

    HttpServer("t", "https://x/mcp", client_options={"trust_env": False}).transport()
    assert read == [True, False]
    HttpServer("t", "https://x/mcp", client_options={"verify": False}).transport()
    assert read == [True, False]


def test_of_a_group_the_first_member_is_told_in_one_line() -> None:
    assert text_of(ExceptionGroup("a", [ExceptionGroup("b", [OSError("no\n  way")])])) == "OSError: no way"
