"""Claim: a model can be given by name; what is missing for it is named, and nothing of it is loaded before."""

from __future__ import annotations

import subprocess
import sys

import pytest

from agentlane import Agent, InvalidDefinition
from agentlane.models.names import PROVIDERS, model_named


def test_a_name_without_a_provider_says_how_names_look() -> None:
    with pytest.raises(InvalidDefinition, match=r"'openai:gpt-5'.*the providers are .*openai, openai-chat"):
        Agent(model="gpt-5")


def test_an_unknown_provider_lists_those_there_are() -> None:
    with pytest.raises(InvalidDefinition, match=r"'acme' is not a provider; the providers are .*openai, openai-chat"):
        Agent(model=["acme:large"])


@pytest.mark.parametrize("name", ["", ":", "openai:", ":gpt-5", "openai"])
def test_half_a_name_is_none(name: str) -> None:
    with pytest.raises(InvalidDefinition, match="a model's name has its provider before it"):
        model_named(name)


@pytest.mark.parametrize("provider", sorted(PROVIDERS))
def test_a_missing_extra_is_named_with_what_to_do(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = PROVIDERS[provider]
    monkeypatch.setitem(sys.modules, found.sdk, None)  # as if it were not installed
    for module in [name for name in sys.modules if name.startswith("agentlane.models.")]:
        if module != "agentlane.models.names":
            monkeypatch.delitem(sys.modules, module)

    with pytest.raises(InvalidDefinition) as raised:
        Agent(model=f"{provider}:some-model")

    assert f"pip install 'agentlane-runtime[{found.extra}]'" in str(raised.value)
    assert raised.value.details["extra"] == found.extra


def test_importing_the_library_loads_no_sdk_and_no_adapter() -> None:
    sdks = sorted({provider.sdk for provider in PROVIDERS.values()})
    code = (
        "import sys, agentlane, agentlane.testing, agentlane.models.names\n"
        f"loaded = [name for name in {sdks!r} if name in sys.modules]\n"
        "loaded += [name for name in sys.modules if name.startswith('agentlane.models.') and name[17:] != 'names']\n"
        "print(loaded)"
    )

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)

    assert said.stdout.strip() == "[]"
