"""Claim: what a provider says went wrong is told apart, and whether and when to try again is what it asked for."""

from __future__ import annotations

from typing import Any

import pytest

from agentlane import ModelError
from agentlane.models.http_errors import (
    RETRY_AFTER_MAX_MS,
    error_of,
    error_of_body,
    error_of_status,
    retry_after_ms,
)

NOON = "Wed, 21 Oct 2026 12:00:00 GMT"
NOON_S = 1_792_584_000.0


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"retry-after": "2"}, 2_000),
        ({"retry-after": "0.0301"}, 31),  # up, never down: a wait that is too short is refused again
        ({"retry-after": "0"}, 0),
        ({"retry-after": "-5"}, 0),
        ({"retry-after-ms": "40", "retry-after": "9"}, 40),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9_000),
        ({"retry-after": "Wed, 21 Oct 2026 12:00:07 GMT", "date": NOON}, 7_000),
        ({"retry-after": "Wed, 21 Oct 2026 12:00:07 GMT"}, 7_000),
        ({"retry-after": "Wed, 21 Oct 2026 12:00:07 GMT", "date": "Wed, 21 Oct 2026 12:00:05 GMT"}, 2_000),
        ({"retry-after": "Wed, 21 Oct 2026 11:59:00 GMT", "date": NOON}, 0),
        ({"retry-after": "Wednesday"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "1e30"}, RETRY_AFTER_MAX_MS),
    ],
)
def test_how_long_to_wait_is_read_in_each_form(headers: dict[str, str], expected: int | None) -> None:
    assert retry_after_ms(headers, now_s=NOON_S) == expected


@pytest.mark.parametrize(
    ("status", "body", "kind", "retryable"),
    [
        (400, {"error": {"message": "bad", "type": "invalid_request_error"}}, "invalid_request", False),
        (400, {"error": {"message": "m", "code": "context_length_exceeded"}}, "context_overflow", False),
        (
            400,
            {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 9 > 8"}},
            "context_overflow",
            False,
        ),
        (
            400,
            {"message": "This model's maximum context length is 4096 tokens. However, you requested 5000"},
            "context_overflow",
            False,
        ),
        (
            400,
            {"error": {"code": 400, "message": "the request exceeds the available context size", "type": "x"}},
            "context_overflow",
            False,
        ),
        (400, {"error": {"message": "the context window of this chart is missing"}}, "invalid_request", False),
        (400, {"error": {"message": "flagged", "code": "content_filter"}}, "content_filter", False),
        (400, {"error": {"message": "flagged", "code": "invalid_prompt"}}, "content_filter", False),
        (400, {"error": {"message": "Your credit balance is too low"}}, "quota_exhausted", False),
        (401, {"error": {"message": "m", "code": "invalid_api_key"}}, "authentication_failed", False),
        (402, {}, "quota_exhausted", False),
        (403, "Forbidden", "permission_denied", False),
        (404, {"error": {"code": "model_not_found", "message": "m"}}, "not_found", False),
        (408, {}, "timeout", True),
        (409, {}, "conflict", True),
        (413, {"error": {"type": "request_too_large", "message": "m"}}, "context_overflow", False),
        (418, {}, "invalid_request", False),
        (422, {"detail": "m"}, "invalid_request", False),
        (429, {"error": {"type": "tokens", "code": "rate_limit_exceeded", "message": "m"}}, "rate_limited", True),
        (429, {"error": {"type": "insufficient_quota", "code": "insufficient_quota"}}, "quota_exhausted", False),
        (429, {"error": {"message": "You exceeded your current quota, please check"}}, "quota_exhausted", False),
        (429, {"error": {"message": "Requests exceed the context window limit per minute"}}, "rate_limited", True),
        (429, None, "rate_limited", True),
        (500, {"error": {"type": "api_error", "message": "m"}}, "server_error", True),
        (500, "<html>", "server_error", True),
        (501, {}, "server_error", False),
        (502, None, "server_error", True),
        (503, {}, "overloaded", True),
        (503, {"error": {"code": "slow_down", "message": "m"}}, "overloaded", True),
        (504, {}, "timeout", True),
        (529, {"type": "error", "error": {"type": "overloaded_error", "message": "m"}}, "overloaded", True),
    ],
)
def test_statuses_and_words_become_kinds(status: int, body: object, kind: str, retryable: bool) -> None:
    error = error_of_status(status, {"retry-after": "3"}, body)

    assert (error.kind, error.retryable, error.retry_after_ms) == (kind, retryable, 3_000)
    assert error.sent, "whether it was charged is not known"


@pytest.mark.parametrize(
    ("status", "told", "retryable"),
    [(500, "false", False), (429, "false", False), (422, "true", True), (500, "maybe", True), (401, "true", False)],
)
def test_the_provider_says_whether_to_try_again(status: int, told: str, retryable: bool) -> None:
    assert error_of_status(status, {"x-should-retry": told}, None).retryable is retryable


@pytest.mark.parametrize(
    ("body", "kind", "retryable"),
    [
        ({"type": "overloaded_error", "message": "m"}, "overloaded", True),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "m"}}, "overloaded", True),
        ({"code": "server_error", "message": "m"}, "server_error", True),
        ({"code": "rate_limit_exceeded", "message": "m"}, "rate_limited", True),
        ({"type": "invalid_request_error", "message": "m"}, "invalid_request", False),
        ({"code": "context_length_exceeded", "message": "m"}, "context_overflow", False),
        ({"message": "something went wrong"}, "model_error", True),
        ("gone", "model_error", True),
    ],
)
def test_errors_inside_a_stream_become_kinds(body: object, kind: str, retryable: bool) -> None:
    error = error_of_body(body)

    assert (error.kind, error.retryable) == (kind, retryable)


class _Fake(Exception):
    def __init__(self, text: str = "", **fields: Any) -> None:
        super().__init__(text)
        self.__dict__ |= fields


class APIConnectionError(_Fake):
    pass


class APITimeoutError(APIConnectionError):
    pass


class ConnectError(_Fake):
    pass


class ReadError(_Fake):
    pass


def _from(outer: Exception, inner: Exception) -> Exception:
    outer.__cause__ = inner
    return outer


@pytest.mark.parametrize(
    ("error", "begun", "kind", "sent"),
    [
        (_from(APIConnectionError("c"), ConnectError("refused")), False, "connection_failed", False),
        (_from(APIConnectionError("c"), ReadError("broken")), False, "connection_failed", True),
        (_from(APIConnectionError("c"), ReadError("broken")), True, "stream_cut", True),
        (APITimeoutError("t"), False, "timeout", True),
        (APITimeoutError("t"), True, "stream_cut", True),
        (TimeoutError(), False, "timeout", True),
        (ConnectionResetError("reset"), True, "stream_cut", True),
        (ModelError("as it is", kind="mine", retryable=True), True, "mine", True),
        # An error inside a stream comes with the status of the stream, which was well.
        (_Fake("m", status_code=200, body={"error": {"type": "overloaded_error"}}), True, "overloaded", True),
    ],
)
def test_exceptions_become_kinds(error: Exception, begun: bool, kind: str, sent: bool) -> None:
    found = error_of(error, begun=begun)

    assert found is not None
    assert (found.kind, found.retryable, found.sent) == (kind, True, sent)


def test_a_fault_of_a_program_is_no_failure_of_a_provider() -> None:
    assert error_of(KeyError("text"), begun=True) is None


def test_a_message_says_the_status_and_the_reason_and_stays_short() -> None:
    error = error_of_status(400, {}, {"error": {"message": "x" * 5_000}})

    assert str(error).startswith("the provider answered 400: xxx")
    assert len(str(error)) == 2_000
