"""What pydantic-ai raises, as the failure that it stands for. Its exceptions are known by the names of their classes.

Where it knows more than the status says (a daily quota, an overflow that a server words in its own way), its word
counts: it knows its providers.
"""

from __future__ import annotations

from collections.abc import Mapping

from agentlane import ModelError
from agentlane.models.http_errors import (
    MESSAGE_LENGTH_MAX,
    RETRY_AFTER_MAX_MS,
    content_filter,
    cut_stream,
    error_of,
    error_of_body,
    error_of_status,
)

# Its categories that say more than a status, or than the words of a body, do.
_EXACT = {
    "ModelContextWindowExceededError": ("context_overflow", False),
    "ModelQuotaExceededError": ("quota_exhausted", False),
}
# Those that say more where nothing else tells.
_ELSE = {
    "ModelAuthenticationError": ("authentication_failed", False),
    "ModelNotFoundError": ("not_found", False),
    "ModelRequestRejectedError": ("invalid_request", False),
    "ModelRateLimitError": ("rate_limited", True),
    "ModelUnavailableError": ("overloaded", True),
    "ModelServerError": ("server_error", True),
}
_VAGUE = frozenset({"invalid_request", "model_error"})
_NEVER_SENT = frozenset({"pool", "connect"})
_ITS_OWN = "pydantic_ai"


def failure_of(error: Exception, *, begun: bool) -> ModelError | None:
    """The failure that an exception of pydantic-ai, of an SDK below it or of the transport stands for.

    ``begun`` says that the answer had begun. None for one that is no failure of a request.
    """
    if isinstance(error, ModelError):
        return error
    members = getattr(error, "exceptions", None)
    if isinstance(members, tuple | list) and members:
        return _of_several([each for each in members if isinstance(each, Exception)], begun=begun)
    names = [each.__name__ for each in type(error).__mro__ if each.__module__.partition(".")[0] == _ITS_OWN]
    text = str(error)[:MESSAGE_LENGTH_MAX]
    if isinstance(error, NotImplementedError) and not begun:
        return ModelError(f"pydantic-ai cannot make this request: {text}", kind="invalid_request", sent=False)
    if not names:
        return error_of(error, begun=begun)
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        known = _of_status(error, status)
    elif "ModelRequestTimeout" in names or "ModelTimeoutError" in names:
        known = ModelError(f"nothing came in time: {text}", kind="timeout", retryable=True)
        known = cut_stream(text) if begun and "ModelTimeoutError" in names else known
    elif "ModelConnectionError" in names:
        known = cut_stream(text) if begun else _no_connection(text)
    elif "ModelAPIError" in names:
        known = _of_answer(error, text, begun=begun)
    elif "ContentFilterError" in names:
        known = content_filter(text)
    elif "UnexpectedModelBehavior" in names:
        empty = "ended without" in text
        told = f"the answer cannot be read: {text}"
        known = cut_stream(text) if empty else ModelError(told, kind="invalid_response", retryable=True)
    elif "ConcurrencyLimitExceeded" in names:
        known = ModelError(f"no request was made: {text}", kind="overloaded", retryable=True, sent=False)
    elif "UserError" in names:
        known = ModelError(f"the request could not be made: {text}", kind=_kind_of_misuse(text), sent=begun)
    else:
        return error_of(error, begun=begun)
    return _as_told(known, error, names)


def _of_status(error: Exception, status: int) -> ModelError:
    headers = getattr(error, "headers", None) or {}
    body = getattr(error, "body", None)
    found = error_of_status(status, headers if isinstance(headers, Mapping) else {}, body, _said(error, body))
    if not getattr(error, "in_stream", False):
        return found
    text = str(found).replace(f"the provider answered {status}", "the provider ended the answer", 1)
    return ModelError(text, kind=found.kind, retryable=found.retryable, retry_after_ms=found.retry_after_ms)


def _of_answer(error: Exception, text: str, *, begun: bool) -> ModelError:
    """An error without a status: one that a stream said, one of the transport, or an answer that is none."""
    body = getattr(error, "body", None)
    if body is not None:
        return error_of_body(body, text)
    cause = error.__cause__
    if isinstance(cause, ValueError):
        return ModelError(f"the answer cannot be read: {text}", kind="invalid_response", retryable=True)
    known = None if not isinstance(cause, Exception) else error_of(cause, begun=begun)
    if known is not None:
        return known
    return cut_stream(text) if "ended without" in text else error_of_body(None, text)


def _no_connection(text: str) -> ModelError:
    return ModelError(f"the connection failed: {text}", kind="connection_failed", retryable=True)


def _as_told(known: ModelError, error: Exception, names: list[str]) -> ModelError:
    """With what pydantic-ai says beside the status: its category, the wait, and how far the request came."""
    kind, retryable = known.kind, known.retryable
    categories = _EXACT | _ELSE if kind in _VAGUE else _EXACT
    found = next((category for name, category in categories.items() if name in names), None)
    if found is not None and found[0] != kind:
        kind, retryable = found
    wait_ms = known.retry_after_ms
    asked_s = getattr(error, "retry_after", None)
    if wait_ms is None and isinstance(asked_s, int | float) and 0 <= asked_s < float("inf"):
        wait_ms = min(round(asked_s * 1_000), RETRY_AFTER_MAX_MS)
    sent = known.sent and getattr(error, "phase", None) not in _NEVER_SENT
    if (kind, retryable, wait_ms, sent) == (known.kind, known.retryable, known.retry_after_ms, known.sent):
        return known
    return ModelError(str(known), kind=kind, retryable=retryable, retry_after_ms=wait_ms, sent=sent, usage=known.usage)


def _of_several(errors: list[Exception], *, begun: bool) -> ModelError | None:
    """Every model of a chain failed: what passes by itself counts, else the last."""
    known = [failure for each in errors if (failure := failure_of(each, begun=begun)) is not None]
    if not known:
        return None
    chosen = next((each for each in known if each.retryable), known[-1])
    waits = [each.retry_after_ms for each in known if each.retryable and each.retry_after_ms is not None]
    told = "; ".join(str(each) for each in known)[:MESSAGE_LENGTH_MAX]
    return ModelError(
        told,
        kind=chosen.kind,
        retryable=chosen.retryable,
        retry_after_ms=min(waits, default=None),
        sent=any(each.sent for each in known),
    )


def _said(error: Exception, body: object) -> str:
    return "" if isinstance(body, Mapping) else str(error)


def _kind_of_misuse(text: str) -> str:
    return "authentication_failed" if "api_key" in text.lower() or "API key" in text else "invalid_request"
