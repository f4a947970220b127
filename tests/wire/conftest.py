"""A module's server, with the models of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def wire() -> AsyncIterator[Any]:
    """One server and its models for all tests of a module, which run on one loop."""
    from tests.wire.openai_wire import Wire
    from tests.wire.server import WireServer

    with WireServer() as server:
        made = Wire(server)
        yield made
        await made.aclose()
