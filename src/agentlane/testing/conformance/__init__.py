"""The conformance suite: whether a storage backend keeps the rules S1-S30 of ``agentlane.storage.contract``.

For a backend of one's own, say what there is to test and run it, with or without a test runner::

    @asynccontextmanager
    async def harness():
        with TemporaryDirectory() as folder:
            yield Harness(store=lambda: MyStore(folder))

    report = await check_storage(harness)          # raises ConformanceError that lists every failure
    print(report)                                  # what passed, and what was skipped for want of a capability

or, one test for each check::

    @pytest.mark.parametrize("check", conformance_checks(), ids=str)
    async def test_conformance(check):
        await check_storage(harness, only=[check.name])
"""

from agentlane.testing.conformance.bench import Check
from agentlane.testing.conformance.harness import Harness
from agentlane.testing.conformance.model import ReferenceSession, dump
from agentlane.testing.conformance.runner import (
    ConformanceError,
    Failure,
    Report,
    check_storage,
    conformance_checks,
)

__all__ = [
    "Check",
    "ConformanceError",
    "Failure",
    "Harness",
    "ReferenceSession",
    "Report",
    "check_storage",
    "conformance_checks",
    "dump",
]
