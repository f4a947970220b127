"""Models by name: ``provider:model`` is found among the adapters, whose module is loaded only then."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

from agentlane import InvalidDefinition, Model

DISTRIBUTION = "agentlane-runtime"


class Provider(NamedTuple):
    """Where a provider's adapter is: a class whose one positional argument is the model's name."""

    module: str
    adapter: str
    extra: str
    sdk: str
    """The package that the extra installs, as it is imported."""


# One line a provider, in plain order.
PROVIDERS = {
    "anthropic": Provider("agentlane.models.anthropic", "AnthropicModel", "anthropic", "anthropic"),
    "openai": Provider("agentlane.models.openai", "OpenAIModel", "openai", "openai"),
    "openai-chat": Provider("agentlane.models.openai_chat", "OpenAIChatModel", "openai", "openai"),
    "pydantic-ai": Provider("agentlane.models.pydantic_ai", "PydanticAIModel", "pydantic-ai", "pydantic_ai"),
}


def model_named(name: str) -> Model:
    """The model that ``provider:model`` names, with the defaults of its adapter; no request is made.

    Raises ``InvalidDefinition`` for a provider that is not known (it lists those that are), for a name without one, and
    where the extra of the provider is not installed (it says how to).
    """
    provider, colon, model = name.partition(":")
    known = ", ".join(sorted(PROVIDERS))
    if not colon or not provider or not model:
        raise InvalidDefinition(
            f"model={name!r}: a model's name has its provider before it, as in 'openai:{model or provider or 'name'}'; "
            f"the providers are {known}",
            wanted=name,
        )
    found = PROVIDERS.get(provider)
    if found is None:
        raise InvalidDefinition(
            f"model={name!r}: {provider!r} is not a provider; the providers are {known}. Give an object of the model "
            "protocol for any other",
            wanted=name,
        )
    try:
        adapter = getattr(import_module(found.module), found.adapter)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != found.sdk:
            raise
        raise InvalidDefinition(
            f"model={name!r}: the package {found.sdk!r} is not installed; {how_to_install(found.extra)}",
            wanted=name,
            extra=found.extra,
        ) from error
    made: Model = adapter(model)
    return made


def how_to_install(extra: str) -> str:
    """What to do where an extra is missing."""
    return f"it comes with the extra {extra!r}: pip install '{DISTRIBUTION}[{extra}]'"
