"""What a provider's failure means: statuses, headers, error bodies and exceptions of SDKs as ``ModelError``.

Nothing here imports an SDK: their exceptions are known by what they carry (``status_code``, ``response``, ``body``),
and those of the transport by their names. An adapter calls ``error_of`` on whatever its SDK raised, and
``error_of_body`` on what a stream said went wrong.

| kind | when | tried again |
| --- | --- | --- |
| ``authentication_failed`` | 401: no key, or a wrong one | no |
| ``permission_denied`` | 403 | no |
| ``not_found`` | 404: no such model, or a wrong address | no |
| ``invalid_request`` | 400, 422 and other 4xx; an address, header or client that no request can be sent with | no |
| ``context_overflow`` | the conversation does not fit; 413 | no, the library compacts |
| ``content_filter`` | a filter of the provider stopped the request or the answer | no |
| ``refusal`` | the model refused to answer | no |
| ``quota_exhausted`` | 402, or 429 that says that nothing is left to pay with | no |
| ``rate_limited`` | 429 | yes |
| ``overloaded`` | 503, 529, or an error that says so | yes |
| ``conflict`` | 409 | yes |
| ``timeout`` | 408, 504, or nothing came in time | yes |
| ``server_error`` | other 5xx | yes, but for 501 and 505 |
| ``connection_failed`` | no connection, or it broke before the answer began | yes |
| ``stream_cut`` | the answer broke off | yes |
| ``model_error`` | an error in the stream that nothing more is known of | yes |

A provider's header ``x-should-retry`` decides over the last column where it is sent, except where the request itself is
at fault.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from agentlane import ModelError, Usage

RETRY_AFTER_MAX_MS = 24 * 60 * 60 * 1000
"""A wait that a provider asks for is taken to be at most this long."""

MESSAGE_LENGTH_MAX = 2_000

_TITLE = re.compile(r"<title[^>]*>([^<]+)<", re.IGNORECASE)

_RETRYABLE = frozenset(
    {
        *("rate_limited", "overloaded", "conflict", "timeout", "server_error", "connection_failed", "stream_cut"),
        "model_error",
    }
)

_BY_STATUS = {
    401: "authentication_failed",
    402: "quota_exhausted",
    403: "permission_denied",
    404: "not_found",
    408: "timeout",
    409: "conflict",
    413: "context_overflow",
    429: "rate_limited",
    503: "overloaded",
    504: "timeout",
    529: "overloaded",
}
_NEVER_AGAIN = frozenset({501, 505})

# What providers call it, in `code` or in `type` of an error's body.
_BY_WORD = {
    "api_error": "server_error",
    "authentication_error": "authentication_failed",
    "billing_error": "quota_exhausted",
    "billing_hard_limit_reached": "quota_exhausted",
    "bio_policy": "content_filter",
    "content_filter": "content_filter",
    "content_policy_violation": "content_filter",
    "context_length_exceeded": "context_overflow",
    "cyber_policy": "content_filter",
    "exceed_context_size_error": "context_overflow",
    "image_content_policy_violation": "content_filter",
    "insufficient_quota": "quota_exhausted",
    "internal_error": "server_error",
    "internal_server_error": "server_error",
    "invalid_api_key": "authentication_failed",
    "invalid_prompt": "content_filter",
    "invalid_request_error": "invalid_request",
    "misalignment_policy_violation": "content_filter",
    "model_not_found": "not_found",
    "not_found_error": "not_found",
    "overloaded": "overloaded",
    "overloaded_error": "overloaded",
    "permission_error": "permission_denied",
    "rate_limit_error": "rate_limited",
    "rate_limit_exceeded": "rate_limited",
    "request_too_large": "context_overflow",
    "server_error": "server_error",
    "server_is_overloaded": "overloaded",
    "server_overloaded": "overloaded",
    "slow_down": "overloaded",
    "timeout_error": "timeout",
    "vector_store_timeout": "server_error",
}
# Words that say less than the status, or than the message, does.
_VAGUE = frozenset({"invalid_request", "server_error"})

# How servers that have no word for it say that a conversation is too long.
_OVERFLOW = re.compile(
    r"maximum context length|context[ _]length[ _]exceeded|(prompt|input|conversation) is too long"
    r"|exceed(s|ed)? .{0,60}context (window|size|limit|length)|context (window|size|limit|length) .{0,40}exceed"
    r"|(greater|longer|larger) than the (model's |max |maximum )?(context|model length)|context the overflows"
    r"|longer than the maximum model length|too many (input )?tokens|maximum (prompt|input) length"
    r"|(input|prompt) token count.{0,80}exceed|exceeded model token limit"
    r"|reduce the length of the (messages|input|prompt)"
    r"|`inputs` (must have less than|tokens \+ `max_new_tokens` must be)",
    re.IGNORECASE,
)
_UNPAID = re.compile(
    r"credit balance is too low|exceeded your current quota|insufficient (credits|balance|funds)", re.I
)

# Exceptions of the transport by which a request cannot have left; httpx and httpx2 name them alike.
_UNSENT = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "LocalProtocolError"})
# Those by which it never can: what it was to be made of is at fault.
_UNSENDABLE = frozenset({"InvalidURL", "UnicodeEncodeError", "UnsupportedProtocol"})
# What clients and connections say where the program has closed them, or has gone on to another event loop.
_OTHER_LOOP = re.compile(r"event loop is closed|different (event )?loop", re.IGNORECASE)
_CLOSED = re.compile(r"client has been closed", re.IGNORECASE)

SECRET_LENGTH_MIN = 8
"""Shorter ones are looked for as whole words: they may be parts of others."""
SECRET_WORD_MIN = 4
_NO_SECRETS = frozenset({"apikey", "basic", "bearer", "digest", "false", "none", "null", "token", "true"})
SECRET_PART_MIN = 4
"""The least of a secret's beginning that is taken for it at the end of a text."""
HIDDEN = "***"


def retry_after_ms(headers: Mapping[str, str], *, now_s: float | None = None) -> int | None:
    """How long these headers ask to wait: ``retry-after-ms``, or ``retry-after`` in seconds or as a date.

    A date counts from the answer's own ``date``, and where there is none from ``now_s``, the time of day. None where
    nothing is asked, or nothing that can be read; a date that has passed is 0.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return _bounded(milliseconds)
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is not None:
        return _bounded(seconds * 1_000)
    until = _date_s(text)
    if until is None:
        return None
    since = _date_s(headers.get("date"))
    if since is None:
        since = time.time() if now_s is None else now_s
    return _bounded((until - since) * 1_000)


def error_of_status(
    status: int, headers: Mapping[str, str], body: object, message: str = "", *, now_s: float | None = None
) -> ModelError:
    """The failure that an HTTP answer is. ``headers`` have lower-case names, or find them in any case."""
    words, said = _read(body)
    text = said or message or "no reason was given"
    kind = _kind(status, words, text)
    retryable = kind in _RETRYABLE and status not in _NEVER_AGAIN
    told = headers.get("x-should-retry")
    if told in ("true", "false") and (retryable or told == "false" or kind == "invalid_request"):
        retryable = told == "true"
    return ModelError(
        _cut(f"the provider answered {status}: {text}"),
        kind=kind,
        retryable=retryable,
        retry_after_ms=retry_after_ms(headers, now_s=now_s),
    )


def error_of_body(body: object, message: str = "", *, usage: Usage | None = None) -> ModelError:
    """The failure that an error inside a stream, or at the end of one, is; there is no status to tell by."""
    words, said = _read(body)
    text = said or message or "no reason was given"
    kind = _kind(None, words, text)
    return ModelError(
        _cut(f"the provider ended the answer: {text}"), kind=kind, retryable=kind in _RETRYABLE, usage=usage
    )


def error_of(error: BaseException, *, begun: bool = False, now_s: float | None = None) -> ModelError | None:
    """The failure that an exception of an SDK or of its transport stands for; None for one that is neither.

    ``begun`` says that the answer had begun: then a connection that breaks has cut it.
    """
    if isinstance(error, ModelError):
        return error
    body = getattr(error, "body", None)
    text = str(getattr(error, "message", "") or error)
    response = getattr(error, "response", None)
    status = getattr(error, "status_code", None)
    if isinstance(status, int) and status >= 400:
        headers: Any = getattr(response, "headers", None)
        return error_of_status(status, {} if headers is None else headers, body, text, now_s=now_s)
    names = {each.__name__ for link in _chain(error) for each in type(link).__mro__}
    if begun and names & {"APIConnectionError", "TransportError", "TimeoutException", "OSError", "EndOfStream"}:
        return cut_stream(_reason(error))
    if (unsendable := _unsendable(error, names)) is not None:
        return unsendable
    if names & {"APITimeoutError", "TimeoutException", "TimeoutError"}:
        return _transport("timeout", "nothing came in time", error, names)
    if names & {"APIConnectionError", "TransportError", "OSError"}:
        return _transport("connection_failed", "the connection failed", error, names)
    if body is not None or "APIError" in names:
        return error_of_body(body, text)
    return None


def cut_stream(why: str = "", *, usage: Usage | None = None) -> ModelError:
    """The failure of an answer that broke off before its end."""
    text = "the answer broke off before its end"
    return ModelError(_cut(f"{text}: {why}" if why else text), kind="stream_cut", retryable=True, usage=usage)


def refusal(text: str, *, usage: Usage | None = None) -> ModelError:
    """The failure of an answer in which the model refuses."""
    return ModelError(_cut(f"the model refused: {text or 'it gave no reason'}"), kind="refusal", usage=usage)


def content_filter(text: str = "", *, usage: Usage | None = None) -> ModelError:
    """The failure of an answer that a filter of the provider stopped."""
    told = text or "a filter of the provider stopped the answer"
    return ModelError(_cut(told), kind="content_filter", usage=usage)


def secrets_of(options: Mapping[str, Any], client: object) -> Iterator[str]:
    """The secrets among an adapter's options and in the client that it asks with: keys, headers, the address's."""
    given = [options.get("api_key"), getattr(client, "api_key", None), getattr(client, "auth_token", None)]
    given += (options.get("default_headers") or {}).values()
    for url in (options.get("base_url"), getattr(client, "base_url", None)):
        if url is not None:
            with suppress(ValueError):
                given.append(urlsplit(str(url)).password)
    for secret in given:
        if isinstance(secret, str):
            yield secret.strip()
            yield from secret.split()  # what is behind "Bearer", and each line


def hidden(text: str, secrets: Iterable[str]) -> str:
    """``text`` without any of these, and without the beginning of one where it was cut."""
    for secret in secrets:
        if len(secret) < SECRET_LENGTH_MIN:
            if len(secret) >= SECRET_WORD_MIN and secret.lower() not in _NO_SECRETS:
                text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", HIDDEN, text)
            continue
        text = text.replace(secret, HIDDEN)
        rest = text.removesuffix("…")
        for length in range(min(len(secret) - 1, len(rest)), SECRET_PART_MIN - 1, -1):
            if rest.endswith(secret[:length]):
                text = f"{rest[:-length]}{HIDDEN}{text[len(rest) :]}"
                break
    return text


def without_secrets(error: ModelError, secrets: Iterable[str]) -> ModelError:
    """The failure with its text without any of these; the same object if it has none of them."""
    text = hidden(str(error), secrets)
    if text == str(error):
        return error
    return ModelError(
        text,
        retryable=error.retryable,
        retry_after_ms=error.retry_after_ms,
        kind=error.kind,
        sent=error.sent,
        usage=error.usage,
    )


def _unsendable(error: BaseException, names: set[str]) -> ModelError | None:
    """The failure of what the program itself has to mend: nothing was sent."""
    reason = _reason(error)
    again = False
    if names & _UNSENDABLE or ("LocalProtocolError" in names and "header" in reason):
        why = reason
    elif "RuntimeError" in names and _OTHER_LOOP.search(reason):
        again = True  # the connection that was left is dropped, and the next is of this loop
        why = f"the client was used on another event loop before; give each loop a client of its own ({reason})"
    elif "RuntimeError" in names and _CLOSED.search(reason):
        why = f"the client is closed ({reason})"
    else:
        return None
    kind = "connection_failed" if again else "invalid_request"
    return ModelError(_cut(f"the request cannot be sent: {why}"), kind=kind, retryable=again, sent=False)


def _transport(kind: str, what: str, error: BaseException, names: set[str]) -> ModelError:
    return ModelError(_cut(f"{what}: {_reason(error)}"), kind=kind, retryable=True, sent=not names & _UNSENT)


def _kind(status: int | None, words: tuple[str, ...], text: str) -> str:
    found = next((_BY_WORD[word] for word in words if _BY_WORD.get(word, "server_error") not in _VAGUE), None)
    if found is not None:
        return found
    if status not in (401, 403, 404) and _OVERFLOW.search(text) and status != 429:
        return "context_overflow"
    if status in (None, 400, 403, 429) and _UNPAID.search(text):
        return "quota_exhausted"
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status is not None:
        return "invalid_request" if status < 500 else "server_error"
    return next((_BY_WORD[word] for word in words if word in _BY_WORD), "model_error")


def _read(body: object) -> tuple[tuple[str, ...], str]:
    """The words of an error's body, the most exact first, and its message."""
    if not isinstance(body, Mapping):
        return (), _text(body)
    inner = body.get("error")
    if isinstance(inner, Mapping):
        words, text = _read(inner)
        outer, _ = _read({key: value for key, value in body.items() if key != "error"})
        return (*words, *outer), text or _text(body.get("message"))
    given = (body.get("code"), body.get("type"))
    words = tuple(word.lower() for word in given if isinstance(word, str))
    return words, _text(body.get("message")) or _text(inner) or _text(body.get("detail"))


def _text(value: object) -> str:
    text = value.strip() if isinstance(value, str) else ""
    if not text.startswith("<"):
        return text
    title = _TITLE.search(text)  # of a page that something on the way has made, for people
    return " ".join(title[1].split()) if title else "a page of HTML"


def _chain(error: BaseException) -> list[BaseException]:
    """The exception and what it was raised from, a bounded way down."""
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in links and len(links) < 16:
        links.append(link)
        link = link.__cause__ or link.__context__
    return links


def _reason(error: BaseException) -> str:
    """What the innermost exception says: those around it say less."""
    innermost = _chain(error)[-1]
    return f"{type(innermost).__name__}: {innermost}" if str(innermost) else type(innermost).__name__


def _cut(text: str) -> str:
    return text if len(text) <= MESSAGE_LENGTH_MAX else f"{text[: MESSAGE_LENGTH_MAX - 1]}…"


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _date_s(text: str | None) -> float | None:
    if not text:
        return None
    try:
        date = parsedate_to_datetime(text)
        return (date if date.tzinfo is not None else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def _bounded(milliseconds: float) -> int:
    return math.ceil(min(max(milliseconds, 0.0), float(RETRY_AFTER_MAX_MS)))
