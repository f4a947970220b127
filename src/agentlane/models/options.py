"""What adapters check of their options, where the model is made, and of an agent's settings, before they are sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agentlane import InvalidDefinition, ModelError, ModelLimits, ModelRequest
from agentlane.models.prices import Prices


def check_options(
    name: object,
    *,
    provider: object,
    api_key: object = None,
    base_url: object = None,
    headers: object = None,
    timeout_ms: object = None,
    limits: object = None,
    prices: object = None,
    texts: Mapping[str, object] | None = None,
    flags: Mapping[str, object] | None = None,
    choices: Mapping[str, object] | None = None,
) -> None:
    """Raise ``InvalidDefinition`` for an option that is of the wrong kind; it says no key and no header's value.

    ``flags`` are True or False, ``choices`` these or None, and ``texts`` texts or None.
    """
    for what, value in (("name", name), ("provider", provider)):
        if not isinstance(value, str) or not value.strip():
            raise InvalidDefinition(f"{what}={value!r:.80} must be a text that is not empty")
    for what, value in (("api_key", api_key), ("base_url", base_url), *(texts or {}).items()):
        if value is not None and not isinstance(value, str):
            raise InvalidDefinition(f"{what}= must be a text or None, not {type(value).__name__}")
    for what, value in {**(flags or {}), **(choices or {})}.items():
        if type(value) is not bool and (value is not None or what in (flags or {})):
            raise InvalidDefinition(f"{what}={value!r:.80} must be True or False")
    if timeout_ms is not None and (type(timeout_ms) is not int or timeout_ms < 1):
        raise InvalidDefinition(f"timeout_ms={timeout_ms!r:.80} must be a whole number of at least 1")
    _check_headers(headers)
    _check_limits(limits)
    if prices is not None and not isinstance(prices, Prices):
        raise InvalidDefinition(
            f"prices={prices!r:.80}: agentlane.models.prices.Prices(input=..., output=...) is needed"
        )


def _check_headers(headers: object) -> None:
    if headers is None:
        return
    if not isinstance(headers, Mapping):
        raise InvalidDefinition(f"headers= must be a mapping of texts to texts, not {type(headers).__name__}")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            what = f"{name!r:.80} is {type(value).__name__}" if isinstance(name, str) else f"{name!r:.80} is no name"
            raise InvalidDefinition(f"headers= must be a mapping of texts to texts: {what}")


def _check_limits(limits: object) -> None:
    if limits is None:
        return
    if not isinstance(limits, ModelLimits):
        raise InvalidDefinition(f"limits={limits!r:.80}: agentlane.ModelLimits(context_tokens=...) is needed")
    for what in ("context_tokens", "output_tokens"):
        value: object = getattr(limits, what)
        if value is not None and (type(value) is not int or value < 1):
            raise InvalidDefinition(f"limits: {what}={value!r:.80} must be a whole number of at least 1, or None")


def setting_list(settings: dict[str, Any], name: str, of: type[Any], what: str) -> list[Any]:
    """Take a list out of an agent's settings, empty if it is not there; ``ModelError``, not sent, for anything else."""
    given = settings.pop(name, None)
    if given is None:
        return []
    if not isinstance(given, list | tuple) or not all(isinstance(each, of) for each in given):
        raise bad_setting(name, f"a list of nothing but {what} is needed, not {type(given).__name__}")
    return list(given)


def setting_object(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An object of an agent's settings, empty if it is not there; ``ModelError``, not sent, for anything else."""
    given = settings.get(name)
    if given is not None and not isinstance(given, Mapping):
        raise bad_setting(name, f"an object is needed, not {type(given).__name__}")
    return dict(given or {})


def bad_setting(name: str, why: str) -> ModelError:
    """The failure of a setting that no request can be made with."""
    return ModelError(f"the setting {name!r}: {why}", kind="invalid_request", sent=False)


def bound_answer(settings: dict[str, Any], name: str, bound: int | None) -> None:
    """Put a request's bound on its answer into the settings, unless a smaller one is there."""
    given = settings.get(name)
    smaller = isinstance(given, int | float) and bound is not None and given <= bound
    if bound is not None and not smaller:
        settings[name] = bound


def leave_out_of_summary(request: ModelRequest, settings: dict[str, Any], names: Iterable[str]) -> None:
    """Take settings out of a request for a summary that it cannot have or that would make something else of it."""
    if request.purpose == "summary":
        for name in names:
            settings.pop(name, None)


def leave_out_of_object(settings: dict[str, Any], name: str, *keys: str) -> None:
    """Take keys out of an object of the settings, and the object too if there is nothing else in it."""
    given = settings.get(name)
    if isinstance(given, Mapping) and any(key in given for key in keys):
        settings[name] = {key: value for key, value in given.items() if key not in keys}
        if not settings[name]:
            del settings[name]
