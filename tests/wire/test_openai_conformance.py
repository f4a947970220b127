"""Claim: OpenAI's adapters, through their SDK and over HTTP, keep every rule of the model protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from agentlane.testing import ModelCheck, check_model, model_conformance_checks
from tests.wire.openai_apis import Api, both
from tests.wire.openai_place import LACKING, places

openai = pytest.importorskip("openai")

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def client() -> AsyncIterator[Any]:
    async with openai.AsyncOpenAI(api_key="a-key", base_url="http://nowhere") as made:
        yield made


@both
@pytest.mark.parametrize("check", model_conformance_checks(), ids=str)
async def test_the_adapter_keeps_every_rule(check: ModelCheck, api: Api, client: Any) -> None:
    lacking = LACKING[api.name]
    report = await check_model(places(api, client), only=[check.name], without=lacking)

    assert report.passed == (() if set(check.needs) & set(lacking) else (check.name,)), report
