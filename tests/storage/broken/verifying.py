"""Stores that break the rule of ``verify`` (S29)."""

from __future__ import annotations

import msgspec

from agentlane.data.findings import Finding, VerifyReport
from agentlane.data.writes import Address, SetValue
from agentlane.errors import SessionOwned, UnknownSession
from tests.storage.broken.base import BrokenStore

_FINDING = Finding(code="leftover", place="a file", text="it is there", advice="look at it")


class VerifyCriesWolf(BrokenStore):
    """S29: a session that is open has a finding."""

    async def verify(self, session_id: str) -> VerifyReport:
        report = await self.inner.verify(session_id)
        return msgspec.structs.replace(report, findings=(_FINDING,)) if report.entries > 5 else report


class VerifyMiscounts(BrokenStore):
    """S29: a list that was deleted is counted."""

    async def verify(self, session_id: str) -> VerifyReport:
        report = await self.inner.verify(session_id)
        return msgspec.structs.replace(report, elements=report.elements + (report.entries > 4))


class VerifyKnowsNoUnknownSession(BrokenStore):
    """S29: a session that is not there has no findings."""

    async def verify(self, session_id: str) -> VerifyReport:
        try:
            return await self.inner.verify(session_id)
        except UnknownSession:
            return VerifyReport(session_id=session_id)


class VerifyOwns(BrokenStore):
    """S29: a session that is open cannot be looked at."""

    async def verify(self, session_id: str) -> VerifyReport:
        try:
            await (await self.inner.open(session_id)).close()
        except SessionOwned as error:
            return VerifyReport(session_id=session_id, findings=(_FINDING,), more=len(str(error)))
        return await self.inner.verify(session_id)


class VerifyWrites(BrokenStore):
    """S29: a mark is left where nobody has the session open."""

    async def verify(self, session_id: str) -> VerifyReport:
        try:
            storage = await self.inner.open(session_id)
            await storage.submit([SetValue(Address("app.verify", "looked"), b"true")])
            await storage.close()
        except SessionOwned:
            pass
        return await self.inner.verify(session_id)


class VerifyNamesAnother(BrokenStore):
    """S29: the report is of a session without a name."""

    async def verify(self, session_id: str) -> VerifyReport:
        return msgspec.structs.replace(await self.inner.verify(session_id), session_id="")
