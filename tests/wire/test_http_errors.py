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
    hidden,
    retry_after_ms,
    secrets_of,
    without_secrets,
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
        ({"retry-after": "Wed, 21 Oct 2026 12:00:07 -0000"}, 7_000),  # a date without a zone is one of UTC
        ({"retry-after": "Wednesday"}, None),
        ({"retry-after-ms": "-1"}, 0),
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


# What servers say of a conversation that is too long, as they word it.
OVERFLOWS = [
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
    "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "prompt is too long: 208656 tokens > 200000 maximum",
    "input length and `max_tokens` exceed context limit: 178959 + 64000 > 200000",
    "Input is too long for requested model.",
    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "the request exceeds the available context size, try increasing it",
    "request (9000 tokens) exceeds the available context size (8192 tokens), try increasing it",
    "the input length exceeds the context length",
    "Trying to keep the first 9000 tokens when context the overflows. However, the model is loaded with context length "
    "of only 4096 tokens",
    "The number of tokens to keep from the initial prompt is greater than the context length.",
    "The decoder prompt (length 9000) is longer than the maximum model length of 8192.",
    "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
    "Requested token count exceeds the model's maximum context length of 8192 tokens.",
    "Input validation error: `inputs` must have less than 1024 tokens. Given: 2048",
    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 and 500",
    "Please reduce the length of the messages or completion.",
    "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
    "This model's maximum prompt length is 131072 but the request contains 200000 tokens.",
    "too many tokens: total number of tokens in the prompt cannot exceed 4081",
    "prompt token count of 70000 exceeds the limit of 64000",
    "Your request exceeded model token limit: 8192 (requested: 9000)",
    "invalid params, context window exceeds limit",
]


@pytest.mark.parametrize("text", OVERFLOWS)
@pytest.mark.parametrize("status", [400, 422, 500])
def test_a_conversation_that_is_too_long_is_known_by_what_servers_say(text: str, status: int) -> None:
    error = error_of_status(status, {}, {"error": {"message": text, "type": "x"}})

    assert (error.kind, error.retryable) == ("context_overflow", False)


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens is too large: 100000. This model supports at most 16384 completion tokens",
        "the length of the messages array must be at most 2048",
        "Rate limit reached for tokens per min",
        "string too long in 'tools[0].function.name': expected at most 64",
        "Requests exceed the limit of your plan",
    ],
)
def test_what_compaction_would_not_mend_is_no_overflow(text: str) -> None:
    assert error_of_status(400, {}, {"error": {"message": text}}).kind == "invalid_request"


@pytest.mark.parametrize(
    ("page", "told"),
    [
        ("<html><head><title>502 Bad\n Gateway</title></head><body>" + "x" * 5_000, "502 Bad Gateway"),
        ("  <!doctype html><p>no title", "a page of HTML"),
    ],
)
def test_a_page_that_something_on_the_way_made_is_told_in_few_words(page: str, told: str) -> None:
    assert str(error_of_status(502, {}, page)) == f"the provider answered 502: {told}"


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


class UnsupportedProtocol(_Fake):
    pass


class LocalProtocolError(_Fake):
    pass


@pytest.mark.parametrize(
    ("cause", "kind", "retryable"),
    [
        (UnsupportedProtocol("no http://"), "invalid_request", False),
        (LocalProtocolError("Illegal header value b'Bearer x\\n'"), "invalid_request", False),
        (LocalProtocolError("Can't send data when our state is ERROR"), "connection_failed", True),
        (UnicodeEncodeError("ascii", "é", 0, 1, "ordinal not in range"), "invalid_request", False),
        (RuntimeError("Cannot send a request, as the client has been closed."), "invalid_request", False),
        (RuntimeError("Event loop is closed"), "connection_failed", True),
        (RuntimeError("<Lock> is bound to a different event loop"), "connection_failed", True),
    ],
)
def test_what_cannot_be_sent_was_not_sent_and_is_tried_again_only_where_that_helps(
    cause: Exception, kind: str, retryable: bool
) -> None:
    found = error_of(_from(APIConnectionError("c"), cause))

    assert found is not None
    assert (found.kind, found.retryable, found.sent) == (kind, retryable, False)


def test_secrets_are_taken_out_of_a_failure_which_is_else_the_same() -> None:
    class Client:
        api_key = "sk-of-the-client\n"
        base_url = "http://me:the-password@there/v1"

    options = {"api_key": None, "default_headers": {"x-token": "Bearer of-the-header", "x-short": "yes"}}
    text = "sk-of-the-client the-password of-the-header yes"
    error = ModelError(text, kind="mine", retryable=True, retry_after_ms=5, sent=False)

    found = without_secrets(error, secrets_of(options, Client()))

    assert str(found) == "*** *** *** yes"
    assert found.details | {"usage": None} == error.details | {"usage": None}
    assert (found.kind, found.retryable, found.retry_after_ms, found.sent) == ("mine", True, 5, False)
    assert without_secrets(found, secrets_of(options, Client())) is found


@pytest.mark.parametrize("length", [1, 3, 4, 10, 19, 20])
def test_a_secret_that_a_text_was_cut_in_is_taken_out_as_far_as_it_goes(length: int) -> None:
    secret = "sk-0123456789abcdefg"
    for end in ("", "…"):
        found = hidden(f"the key {secret[:length]}{end}", [secret])

        assert found == (f"the key ***{end}" if length > 3 else f"the key {secret[:length]}{end}")


def test_a_fault_of_a_program_is_no_failure_of_a_provider() -> None:
    assert error_of(KeyError("text"), begun=True) is None


def test_a_message_says_the_status_and_the_reason_and_stays_short() -> None:
    error = error_of_status(400, {}, {"error": {"message": "x" * 5_000}})

    assert str(error).startswith("the provider answered 400: xxx")
    assert len(str(error)) == 2_000


@pytest.mark.parametrize(
    ("secret", "told"),
    [
        ("hunter2", "the key *** of hunter22 and xhunter2: ***"),
        ("key", "the key hunter2 of hunter22 and xhunter2: hunter2"),  # too short to be one
        ("Bearer", "the key hunter2 of hunter22 and xhunter2: hunter2"),
    ],
)
def test_a_short_secret_is_hidden_where_it_is_a_whole_word(secret: str, told: str) -> None:
    assert hidden("the key hunter2 of hunter22 and xhunter2: hunter2", [secret]) == told
    assert hidden("a Bearer token", [secret]) == "a Bearer token"
