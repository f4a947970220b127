"""The official SDK's client for a server on loopback."""

from __future__ import annotations

from typing import Any

from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient

from tests.wire.anthropic_rules import Provider


def client_of(provider: Provider, **given: Any) -> AsyncAnthropic:
    """A client for the provider, which its user closes. It reads no certificates, which takes longer than a test."""
    plain = DefaultAsyncHttpxClient(base_url=provider.url, verify=False)
    return AsyncAnthropic(api_key="key", base_url=provider.url, http_client=plain, **given)
