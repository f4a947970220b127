"""One tool call as a task of its own: started once, asked to stop once, left behind after its grace."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from agentlane.data import codec
from agentlane.data.messages import ToolCallPart, UserPart
from agentlane.driver.effects import EffectMark, StopReason, WaitNode
from agentlane.driver.runtime import Runtime
from agentlane.driver.threads import NoThread
from agentlane.driver.tool_questions import Asked, Question, checked_question, has_asked
from agentlane.driver.tool_results import (
    Sealed,
    error_text,
    seal_error,
    seal_message,
    seal_question,
    seal_value,
    text_of,
)
from agentlane.errors import InvalidDefinition, NoActiveOperation
from agentlane.machine.outcomes import ABORTED, STARTED_BEFORE, interrupted
from agentlane.tool import NotStarted, RetryTool, Tool
from agentlane.tool_context import ToolContext

_STRENGTH: dict[StopReason, int] = {"timeout": 1, "abort": 2, "close": 3}


class CallOwner(Protocol):
    """What a call's task asks of the pass that runs it. Reports come once, on the loop."""

    def call_ended(self, index: int, outcome: Sealed | None, *, begun: bool) -> None:
        """The effect is over: its outcome, or None where none may be made of its end; ``begun`` if it ever started."""
        ...

    def being_cancelled(self) -> bool:
        """Whether the pass itself is being cancelled natively, as everything is when the loop ends."""
        ...

    async def save_progress(self, index: int, content: str | Sequence[UserPart]) -> None: ...
    async def save_memo(self, index: int, name: str, value: Any, running: Callable[[], bool]) -> None: ...
    def memo(self, index: int, name: str, default: Any) -> Any: ...
    def progress_of(self, index: int) -> tuple[UserPart, ...]: ...
    def answer_to(self, index: int, name: str) -> bytes | None: ...


class _Raised(Exception):
    """What a plain function raised in its thread: told as its outcome, and never raised here, whatever it is."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class CallEffect:
    """The running effect of one call. Also the port behind its ``ToolContext``."""

    __slots__ = (
        "_again",
        "_begun",
        "_call",
        "_checked",
        "_ended",
        "_grace_ms",
        "_limit_bytes",
        "_mark",
        "_may_ask",
        "_owner",
        "_question",
        "_runtime",
        "_stopped_by",
        "_task",
        "_thread",
        "_ticket",
        "_timers",
        "_told",
        "_tool",
        "index",
    )

    def __init__(
        self,
        owner: CallOwner,
        runtime: Runtime,
        lane: WaitNode,
        *,
        index: int,
        call: ToolCallPart,
        tool: Tool[Any, Any],
        checked: Any,
        limit_bytes: int,
        grace_ms: int,
        may_ask: bool,
    ) -> None:
        self.index = index
        self._owner = owner
        self._runtime = runtime
        self._mark = EffectMark(lane)
        self._call = call
        self._tool = tool
        self._checked = checked
        self._limit_bytes = limit_bytes
        self._grace_ms = grace_ms
        self._may_ask = may_ask
        self._question: Question | None = None
        self._stopped_by: StopReason | None = None
        self._again = False
        self._begun = False
        self._ended = False
        self._told = False
        self._ticket: list[None] = [None]
        self._thread: asyncio.Future[tuple[Any, BaseException | None]] | None = None
        self._timers: list[asyncio.Task[Any]] = []
        self._task: asyncio.Task[Any] | None = None

    def start(self, context: ToolContext[Any]) -> None:
        """Start the effect; its intent is committed. # I6"""
        self._again = context.attempt > 1
        self._task = self._runtime.spawn(self._run(context), f"agentlane tool {self._tool.name}", self._task_done)

    def stop(self, why: StopReason) -> None:
        """Ask the effect to end, once; after the grace it is left behind. A stronger reason replaces a weaker one."""
        if self._ended:
            return
        first = self._stopped_by is None
        if self._stopped_by is None or _STRENGTH[why] > _STRENGTH[self._stopped_by]:
            self._stopped_by = why
        if not first:
            return
        # A plain function cannot be cancelled: it is told through its context and waited for until the grace is over.
        if self._task is not None and self._thread is None:
            self._task.cancel()
        self._timers.append(self._runtime.spawn(self._grace(), f"agentlane grace {self._tool.name}"))

    def drop(self) -> None:
        """The session is dead or faulted: no report will be taken."""
        self._ended = self._mark.ended = self._told = True
        self._stopped_by = "close"
        self._take_ticket()
        if self._task is not None:
            self._task.cancel()
        self._cancel_timers()

    # The port behind the context.

    async def save_progress(self, content: str | Sequence[UserPart]) -> None:
        self._check_running("progress")
        await self._owner.save_progress(self.index, content)

    async def save_memo(self, name: str, value: Any) -> None:
        self._check_running(f"memo {name!r}")
        await self._owner.save_memo(self.index, name, value, lambda: not self._ended)

    def memo(self, name: str, default: Any) -> Any:
        self._check_running(f"memo {name!r}")
        return self._owner.memo(self.index, name, default)

    def ask(self, name: str, question: str) -> Any:
        """The answer to a question; without one the call is left here."""
        self._check_running(f"question {name!r}")
        asked = checked_question(name, question)
        payload = self._owner.answer_to(self.index, asked.name)
        if payload is not None:
            return codec.JSON.decode(payload, f"answer to {asked.name}")
        if not self._may_ask:
            raise InvalidDefinition(
                f"tool {self._tool.name!r}: question {name!r}: a tool that asks runs again from its beginning once it "
                "is answered, and this one must not: declare replay='safe' or replay='idempotent'"
            )
        self._question = self._question or asked
        raise Asked(f"the tool {self._tool.name!r} asks {asked.name!r}, and starts again when it is answered")

    def stop_requested(self) -> bool:
        return self._stopped_by is not None

    def _check_running(self, what: str) -> None:
        """A call that has its outcome has no progress and no memos, and must not reach those of another one."""
        self._runtime.check_place()
        if self._ended:
            raise NoActiveOperation(f"{what} of tool {self._tool.name!r}: the call is over, nothing of it is kept")

    async def _run(self, context: ToolContext[Any]) -> None:
        if not self._tool.is_async:
            try:
                await self._runtime.threads.turn()  # stopped while it waits for a thread, the call has not begun
            except NoThread as error:
                self._end(
                    seal_error(self._call, f"The tool {self._tool.name!r} was not started: {error}.", self._limit_bytes)
                )
                return
        self._begun = True
        self._mark.set()
        self._runtime.reached("effect.tool.start")
        if self._tool.options.timeout_ms is not None:
            self._timers.append(self._runtime.spawn(self._timeout(self._tool.options.timeout_ms), "agentlane timeout"))
        outcome: Sealed | None
        try:
            outcome = seal_value(self._call, await self._invoke(context), self._limit_bytes)
            if self._question is not None:
                self._runtime.found(
                    f"tool {self._tool.name!r} (call {self._call.id!r}) asked {self._question.name!r}, kept what "
                    "ctx.ask raised and returned: its result stands, and nobody is asked"
                )
        except KeyboardInterrupt:
            self._end(None)
            raise
        except _Raised as raised:
            outcome = self._failed(raised.error)
        except BaseException as error:  # SystemExit and foreign BaseExceptions included: siblings must not suffer
            outcome = self._failed(error)
        self._runtime.reached("effect.tool.end")
        self._end(outcome)

    async def _invoke(self, context: ToolContext[Any]) -> Any:
        if self._tool.is_async:
            value = self._tool.call(self._checked, context)
        else:
            self._thread = self._in_a_thread(lambda: self._tool.call(self._checked, context))
            value, error = await self._thread
            self._thread = None
            if error is not None:
                raise _Raised(error)
        if inspect.isawaitable(value):
            value = await value
        if inspect.iscoroutine(value):
            value.close()  # it is no result, and nobody will await it
        return value

    def _in_a_thread(self, function: Callable[[], Any]) -> asyncio.Future[tuple[Any, BaseException | None]]:
        runtime = self._runtime
        context = runtime.context.copy()
        context.run(self._mark.set)
        return runtime.threads.run(runtime.loop, context, function, self._take_ticket)

    def _take_ticket(self) -> bool:
        """Whether this is the first to ask: the thread, which then begins, or who leaves it behind before that."""
        try:
            self._ticket.pop()  # atomic
        except IndexError:
            return False
        return True

    def _failed(self, error: BaseException) -> Sealed | None:
        name = self._tool.name
        stopped = self._stopped_by
        if isinstance(error, NotStarted):
            return self._not_started(error)
        if stopped == "close" or self._owner.being_cancelled():
            return (
                None  # an exception after our signal is no outcome, nor one after the loop's, which cancels everything
            )
        if stopped == "abort":
            return self._aborted()
        if stopped == "timeout":
            return self._timed_out()
        if self._question is not None and has_asked(error):
            return seal_question(self._call, self._question)
        if isinstance(error, asyncio.CancelledError):
            return seal_error(self._call, f"The tool {name!r} cancelled itself.", self._limit_bytes)
        if isinstance(error, RetryTool):
            return seal_error(self._call, text_of(error) or f"Call {name!r} again.", self._limit_bytes)
        return seal_error(self._call, f"The tool {name!r} failed: {error_text(error)}", self._limit_bytes)

    def _not_started(self, error: NotStarted) -> Sealed | None:
        """The end of an effect that says it did not begin: told to stop, the call is as if it had not been started."""
        if self._stopped_by in ("abort", "close") or self._owner.being_cancelled():
            self._begun = False
            return None
        why = text_of(error) or "it could not begin"
        if self._again:
            text = f"The tool {self._tool.name!r} could not be started again: {why}. {STARTED_BEFORE}"
        else:
            text = f"The tool {self._tool.name!r} was not started: {why}. The call had no effect."
        return seal_error(self._call, text, self._limit_bytes)

    def _aborted(self) -> Sealed:
        return seal_message(interrupted(self._call, ABORTED, self._owner.progress_of(self.index)))

    def _timed_out(self) -> Sealed:
        text = (
            f"The tool {self._tool.name!r} did not end within {self._tool.options.timeout_ms} ms and was stopped. It "
            "may have run in part. Check before doing it again."
        )
        return seal_message(interrupted(self._call, text, self._owner.progress_of(self.index)))

    async def _timeout(self, timeout_ms: int) -> None:
        clock = self._runtime.clock
        await clock.sleep_until(clock.now_ms() + timeout_ms)
        self.stop("timeout")

    async def _grace(self) -> None:
        clock = self._runtime.clock
        await clock.sleep_until(clock.now_ms() + self._grace_ms)
        if self._ended:
            return
        where = "task" if self._thread is None else "thread"
        if self._thread is not None:
            if self._take_ticket() and self._stopped_by != "timeout":  # its thread has not come to it in all that time
                self._begun = False
                self._end(None)
                return
            self._runtime.threads.left_behind(self._thread)
        self._runtime.found(
            f"the {where} of tool {self._tool.name!r} (call {self._call.id!r}) did not end within "
            f"{self._grace_ms} ms and was left behind"
        )
        match self._stopped_by:
            case "abort":
                self._end(self._aborted())
            case "timeout":
                self._end(self._timed_out())
            case _:
                self._end(None)

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        """The task is over: as reported, or cancelled before its first step, which is an effect that never began."""
        if self._ended:
            if not self._told:  # Ctrl-C came in the middle of the report: nothing is known of its end
                if not task.cancelled():
                    task.exception()  # it is raised by the loop
                self._owner.call_ended(self.index, None, begun=self._begun)
            return
        if (
            not task.cancelled()
            and (error := task.exception()) is not None
            and not isinstance(error, KeyboardInterrupt)
        ):
            self._runtime.found(f"tool {self._tool.name!r}: the library failed: {error!r}")
        self._end(self._aborted() if self._begun and self._stopped_by == "abort" else None)

    def _end(self, outcome: Sealed | None) -> None:
        if self._ended:
            if outcome is not None and self._stopped_by is not None:
                self._runtime.found(f"a late result of tool {self._tool.name!r} (call {self._call.id!r}) was refused")
            return
        self._ended = self._mark.ended = True
        self._cancel_timers()
        self._owner.call_ended(self.index, outcome, begun=self._begun)
        self._told = True

    def _cancel_timers(self) -> None:
        current = asyncio.current_task()
        for timer in self._timers:
            if timer is not current:
                timer.cancel()
        self._timers.clear()
