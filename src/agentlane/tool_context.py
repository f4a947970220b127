"""What a running tool is told about its call, and the durable things it may do while it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol

from typing_extensions import TypeVar

from agentlane.data.messages import UserPart

Deps = TypeVar("Deps", default=Any)


class CallPort(Protocol):
    """What a tool's context asks of the driver."""

    async def save_progress(self, content: str | Sequence[UserPart]) -> None: ...
    async def save_memo(self, name: str, value: Any) -> None: ...
    def memo(self, name: str, default: Any) -> Any: ...
    def ask(self, name: str, question: str) -> Any: ...
    def stop_requested(self) -> bool: ...


class ToolContext(Generic[Deps]):
    """One call, as its tool sees it. A tool gets it in the parameter that is annotated with this type.

    - ``operation_id``, ``turn_id`` (the answer's entry id), ``call_id`` (also the result's entry id)
    - ``attempt``: 1 for the first start of the effect; ``recovered``: whether a start may have ended with its process
    - ``epoch``: a fencing token that grows with each owner of the session
    - ``deps``: the agent's dependencies

    Progress, memos and questions belong to the session's event loop (``WrongLoop`` elsewhere: from a plain function,
    hand the coroutine to ``asyncio.run_coroutine_threadsafe``) and to the running call (``NoActiveOperation`` once it
    is over).
    """

    __slots__ = ("_key", "_port", "attempt", "call_id", "deps", "epoch", "operation_id", "recovered", "turn_id")

    def __init__(
        self,
        *,
        port: CallPort,
        key: Callable[[], str],
        operation_id: str,
        turn_id: str,
        call_id: str,
        attempt: int,
        recovered: bool,
        epoch: int,
        deps: Deps,
    ) -> None:
        self._port = port
        self._key = key
        self.operation_id = operation_id
        self.turn_id = turn_id
        self.call_id = call_id
        self.attempt = attempt
        self.recovered = recovered
        self.epoch = epoch
        self.deps = deps

    @property
    def idempotency_key(self) -> str:
        """Names the place of the call, the same at every start of it: ``<session>/<operation>/<tool>#<digest>/<k>``.

        Each part is percent-encoded. The digest is the first 32 hexadecimal digits of SHA-256 over the model's
        arguments in canonical JSON (sorted keys, no spaces); ``k`` counts earlier calls of the operation with that tool
        and digest.
        """
        return self._key()

    @property
    def cancelled(self) -> bool:
        """Whether the call was asked to stop (abort, close or timeout). Plain functions should look at it."""
        return self._port.stop_requested()

    async def progress(self, content: str | Sequence[UserPart]) -> None:
        """Say how far the call got; the latest content wins and is kept if the process dies.

        Saved at most every 100 ms: durable on return if the last one was saved longer ago, else soon after. Cancelling
        it leaves the save as it is. Gone once the call has its result. ``InvalidMessage`` for other content.
        """
        await self._port.save_progress(content)

    async def memo(self, name: str, default: Any = None) -> Any:
        """The value of this call's memo ``name``, also if it was set before a crash; ``default`` if there is none."""
        return self._port.memo(name, default)

    async def set_memo(self, name: str, value: Any) -> None:
        """Keep JSON data for this call; durable on return, and there at a replay. Gone once the call has its result.

        Cancelling it leaves the save as it is. ``InvalidName`` and ``InvalidMessage`` for a bad name or value.
        """
        await self._port.save_memo(name, value)

    async def ask(self, name: str, question: str) -> Any:
        """Ask a person, and get the JSON data that ``lane.answer`` gave; for ``safe`` and ``idempotent`` tools only.

        Without an answer the call ends here: what is raised is no ``Exception`` and must be let through, ``finally``
        blocks run, the question is committed, and nothing of the call runs while it waits, over restarts too. Answered,
        the tool starts again from its beginning, with the same arguments, key, memos and ``attempt`` one higher, and
        gets the answer under this ``name`` here, at once and at every later start, whatever ``question`` says then. So
        what comes before it may run any number of times; memos keep what is not to be done twice. Another question has
        another name; of those asked at once the first is put, the others when the tool starts again.

        An abort makes the question void. A tool that keeps what is raised and returns has its result, and asks nobody.

        Raises ``InvalidName`` and ``InvalidMessage`` for a bad name or question, and ``InvalidDefinition`` where the
        call may not run again since its tool is, or was at its start, declared ``never`` or ``ask``.
        """
        return self._port.ask(name, question)
