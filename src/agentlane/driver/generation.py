"""One model request as a task: streams an answer, keeps what is shown, and ends in one settled message."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Literal, Protocol

from msgspec.structs import replace

from agentlane.agent import Agent, RunInfo
from agentlane.data import codec
from agentlane.data.border import clean_text
from agentlane.data.messages import AssistantMessage, ErrorInfo, Frame, ModelIdentity, StopReason
from agentlane.data.usage import NOTHING_SENT, Usage, reported_usage
from agentlane.driver.effects import EffectMark, WaitNode
from agentlane.driver.effects import StopReason as StopEffect
from agentlane.driver.frames import FrameLog, clean_answer
from agentlane.driver.hook_calls import HookFailed
from agentlane.driver.notes import SAVE_EVERY_MS
from agentlane.driver.request_hooks import RequestHooks
from agentlane.driver.runtime import Runtime
from agentlane.driver.tool_results import error_text, text_of
from agentlane.errors import InvalidMessage, SessionFaulted, StoreBusy
from agentlane.ids import CALLS_MAX
from agentlane.machine.rules import RETRY_AFTER_MAX_MS
from agentlane.model import Model, ModelError, ModelRequest

FRAMES_BYTES_MAX = 4 * 1024 * 1024
"""How much of one answer's stream is saved before it settles; what is shown beyond it survives an abort, not a kill."""


class GenerationOwner(Protocol):
    """What a request's task asks of the pass that runs it."""

    def answer(self, message: AssistantMessage | None) -> None:
        """The request is over: its settled message, or None where none may be made of its end. Once, on the loop."""
        ...

    def being_cancelled(self) -> bool:
        """Whether the pass itself is being cancelled natively, as everything is when the loop ends."""
        ...

    async def save_frames(self, response_id: str, frames: tuple[Frame, ...]) -> None: ...


class GenerationEffect:
    """A running model request."""

    def __init__(
        self,
        owner: GenerationOwner,
        runtime: Runtime,
        lane: WaitNode,
        *,
        response_id: str,
        model: Model,
        identity: ModelIdentity,
        agent: Agent[Any, Any],
        info: RunInfo[Any],
        build: Callable[[str], ModelRequest | Awaitable[ModelRequest]],
        show: Callable[[Frame], None],
        hooks: RequestHooks | None = None,
        kind: Literal["model", "summary"] = "model",
        grace_ms: int,
    ) -> None:
        self.response_id = response_id
        self._owner = owner
        self._runtime = runtime
        self._mark = EffectMark(lane)
        self._model = model
        self.identity = identity
        self._agent = agent
        self._info = info
        self._build = build
        self._show = show
        self._hooks = hooks
        self._kind = kind
        self._whole: AssistantMessage | None = None
        """The answer that hooks are shown."""
        self._grace_ms = grace_ms
        self.frames = FrameLog()
        self._saved_bytes = 0
        self._sent = False
        self._begun = False
        self._ended = False
        self._told = False
        self._stopped_by: StopEffect | None = None
        self._task: asyncio.Task[Any] | None = None
        self._flusher: asyncio.Task[Any] | None = None
        self._timer: asyncio.Task[Any] | None = None

    @staticmethod
    def dropped() -> AssistantMessage:
        """The answer of a request that was intended and, since an abort came, never sent."""
        error = ErrorInfo(code="aborted", message="the run was aborted before the request was sent")
        return AssistantMessage(content=(), stop_reason="aborted", usage=NOTHING_SENT, error=error)

    def start(self) -> None:
        """Send the request; its intent is committed. # I6"""
        self._task = self._runtime.spawn(self._run(), "agentlane model request", self._task_done)

    def stop(self, why: StopEffect) -> None:
        """Ask the request to end, once; after the grace it is left behind."""
        if self._ended:
            return
        first = self._stopped_by is None
        if first or why == "close":
            self._stopped_by = why
        if first and self._task is not None:
            self._task.cancel()
            self._timer = self._runtime.spawn(self._grace(), "agentlane grace of a model request")

    def drop(self) -> None:
        """The session is dead or faulted: no report will be taken."""
        self._ended = self._mark.ended = self._told = True
        self._stopped_by = "close"
        for task in (self._task, self._flusher, self._timer):
            if task is not None:
                task.cancel()

    def take_unsaved(self) -> tuple[Frame, ...]:
        """Frames that were shown and are not saved; for the flush of a close."""
        return self.frames.take_unsaved()

    async def _run(self) -> None:
        self._begun = True
        self._mark.set()
        self._runtime.reached("effect.model.start" if self._kind == "model" else "effect.summary.start")
        message: AssistantMessage
        try:
            message = await self._settled()
        except KeyboardInterrupt:
            self._end(None)
            raise
        except asyncio.CancelledError:
            if self._ended:
                raise
            message = self._error("model_error", "the model's stream cancelled itself", retryable=True)
        except BaseException as error:  # foreign code; SystemExit included
            message = self._failed(error)
        self._report(message)

    def _report(self, message: AssistantMessage) -> None:
        if not self._ended:
            self._runtime.reached("effect.model.end" if self._kind == "model" else "effect.summary.end")
            self._end(self._as_stopped(message))

    def _as_stopped(self, message: AssistantMessage) -> AssistantMessage | None:
        """What becomes of an end that came after a signal: a whole answer stands, any other end is the signal's doing.

        The end of the event loop is a signal too: it cancels the pass along with everything else.
        """
        if message.stop_reason not in ("error", "aborted"):
            return message
        if self._stopped_by == "abort":
            aborted = ErrorInfo(code="aborted", message="the run was aborted")
            return replace(message, stop_reason="aborted", error=aborted)
        if self._stopped_by is not None or self._owner.being_cancelled():
            return None
        return message

    async def _settled(self) -> AssistantMessage:
        try:
            instructions = await self._instructions()
        except BaseException as error:  # foreign code may raise anything, SystemExit included
            if isinstance(error, KeyboardInterrupt) or (self._is_stopped() and not isinstance(error, Exception)):
                raise
            itself = isinstance(error, asyncio.CancelledError)
            why = "cancelled itself" if itself else f"failed: {error_text(error)}"
            return self._error("instructions_failed", f"the instructions function {why}")
        built = self._build(instructions)
        request = await built if inspect.isawaitable(built) else built
        if self._hooks is not None:
            try:
                messages = await self._hooks.transform(self._hooks.caller(self._is_stopped), request.messages)
            except HookFailed as failed:
                return self._partial("error", failed.error)
            request = replace(request, messages=messages)
        self._sent = True
        stream = self._model.stream(request)
        try:
            async for item in stream:
                if isinstance(item, AssistantMessage):
                    whole = self._checked(item)
                    if self._hooks is not None and self._hooks.wants_answers and whole.stop_reason != "error":
                        whole = await self._shown_to_hooks(self._hooks, whole)
                    self._report(whole)  # before the stream is closed: its clean-up must not hold up the answer
                    return whole
                if self._ended:
                    continue  # left behind: its answer is settled without what comes now
                self._show(self.frames.add(item))
                if self._flusher is None:
                    self._flusher = self._runtime.spawn(self._flush(), "agentlane frames")
        finally:
            await self._close_stream(stream)
        return self._error("stream_cut", "the model's stream ended without its end", retryable=True)

    async def _shown_to_hooks(self, hooks: RequestHooks, whole: AssistantMessage) -> AssistantMessage:
        """What hooks make of a whole answer. What was shown of it is durable first; an abort takes it as it came."""
        self._whole = whole
        try:
            await self._save_shown()
            said = await hooks.respond(hooks.caller(self._is_stopped), whole, lambda other: self._instead(other, whole))
        except HookFailed as failed:
            said = replace(whole, stop_reason="error", error=failed.error)
        except asyncio.CancelledError:
            if self._stopped_by != "abort":
                raise
            said = whole
        return whole if self._stopped_by == "abort" else said

    def _instead(self, message: AssistantMessage, whole: AssistantMessage) -> AssistantMessage:
        """A hook's answer in the place of the model's: who answered, and for what price, stays as it is."""
        return replace(self._clean(message), model=whole.model, usage=whole.usage)

    async def _save_shown(self) -> None:
        frames = self.frames.take_unsaved()
        if not frames or self._saved_bytes >= FRAMES_BYTES_MAX:
            return
        try:
            await self._owner.save_frames(self.response_id, frames)
        except StoreBusy:
            self.frames.put_back(frames)

    def _is_stopped(self) -> bool:
        return self._stopped_by is not None or self._owner.being_cancelled()

    async def _close_stream(self, stream: Any) -> None:
        close = getattr(stream, "aclose", None)
        soon = self._runtime.loop.call_soon(self._watch_clean_up) if self._ended else None
        try:
            if close is not None:
                await close()
            elif inspect.iscoroutine(stream):
                stream.close()  # `async def stream(...)` without a yield: no stream, and nobody will await it
        except (KeyboardInterrupt, asyncio.CancelledError):
            raise
        except BaseException as error:  # the adapter's clean-up must not cost the answer, or end the program
            self._runtime.found(f"closing the stream of model {self.identity} failed: {error!r}")
        finally:
            if soon is not None:
                soon.cancel()

    def _watch_clean_up(self) -> None:
        """The answer is reported, and the stream's clean-up waits for something: it has the grace to end."""
        task = self._task
        if task is None or task.done():
            return
        self._runtime.clean_ups[task] = what = f"the clean-up of a stream of model {self.identity}"
        timer = self._runtime.spawn(self._clean_up_grace(task, what), "agentlane grace of a clean-up")
        task.add_done_callback(lambda task: (self._runtime.clean_ups.pop(task, None), timer.cancel()))

    async def _clean_up_grace(self, task: asyncio.Task[Any], what: str) -> None:
        clock = self._runtime.clock
        await clock.sleep_until(clock.now_ms() + self._grace_ms)
        self._runtime.found(f"{what} did not end within {self._grace_ms} ms and was cancelled")
        task.cancel()

    async def _instructions(self) -> str:
        given = self._agent.instructions
        if self._kind == "summary":
            return ""  # it has instructions of its own
        if isinstance(given, str):
            return clean_text(given)
        text = given(self._info)
        return clean_text(await text if inspect.isawaitable(text) else text, "instructions")

    def _checked(self, message: AssistantMessage) -> AssistantMessage:
        """A settled message that can be stored; one that cannot becomes an error answer with what was shown."""
        try:
            return self._clean(message)
        except Exception as error:  # a foreign object may raise anything while it is read
            told = f"the model's answer cannot be kept: {error_text(error)}"
            return self._error("invalid_response", told, retryable=True)

    def _clean(self, message: AssistantMessage) -> AssistantMessage:
        clean = clean_answer(message, streamed=True)
        if clean.model is None:
            clean = replace(clean, model=self.identity)
        if clean.usage is None and self.frames.usage is not None:
            clean = replace(clean, usage=self.frames.usage)
        if len(clean.calls) > CALLS_MAX:
            raise InvalidMessage(f"answer: {len(clean.calls)} calls; at most {CALLS_MAX} are taken")
        if clean.stop_reason == "aborted":
            clean = replace(clean, stop_reason="error", error=clean.error or _provider_aborted())
        if clean.stop_reason == "error" and clean.error is None:
            clean = replace(clean, error=ErrorInfo(code="model_error", message="the model's answer is an error"))
        return _copied(clean)

    def _failed(self, error: BaseException) -> AssistantMessage:
        if isinstance(error, ModelError):
            try:
                return self._model_error(error)
            except Exception as bad:  # the adapter filled it with what cannot be read
                text = f"the request failed with a {type(error).__name__} that cannot be read: {error_text(bad)}"
                return self._error("model_error", text)
        if isinstance(error, InvalidMessage):
            return self._error("invalid_response", f"the model's stream cannot be kept: {error}", retryable=True)
        transient = isinstance(error, OSError | TimeoutError)
        return self._error("model_error", f"the request failed: {error_text(error)}", retryable=transient)

    def _model_error(self, error: ModelError) -> AssistantMessage:
        if not error.sent:
            self._sent = False
        if error.usage is not None:
            self.frames.usage = _known(error.usage)
        kind: object = error.kind
        retry_after_ms = error.retry_after_ms
        info = ErrorInfo(
            code=clean_text(kind) if isinstance(kind, str) and kind else ModelError.code,
            message=clean_text(text_of(error)),
            retryable=bool(error.retryable),
            retry_after_ms=min(max(retry_after_ms, 0), RETRY_AFTER_MAX_MS) if type(retry_after_ms) is int else None,
        )
        return self._partial("error", info)

    def _error(self, code: str, text: str, *, retryable: bool = False) -> AssistantMessage:
        return self._partial("error", ErrorInfo(code=code, message=clean_text(text), retryable=retryable))

    def _partial(self, stop_reason: StopReason, error: ErrorInfo) -> AssistantMessage:
        """What was shown, as an answer that did not end well; usage as far as it is known."""
        usage: Usage | None = self.frames.usage
        if usage is None and not self._sent:
            usage = NOTHING_SENT
        partial = AssistantMessage(
            content=self.frames.shown(), stop_reason=stop_reason, model=self.identity, usage=usage, error=error
        )
        try:
            return _copied(partial)
        except InvalidMessage as bad:  # a frame was built with wrong types: the answer is an error all the same
            self._runtime.found(f"what model {self.identity} streamed cannot be kept: {bad}")
            return AssistantMessage(content=(), stop_reason=stop_reason, error=error)

    async def _flush(self) -> None:
        """Save what was shown, at most every ``SAVE_EVERY_MS``; an answer that settles sooner is never saved twice."""
        clock = self._runtime.clock
        while self._saved_bytes < FRAMES_BYTES_MAX:
            await clock.sleep_until(clock.now_ms() + SAVE_EVERY_MS)
            if not self.frames.unsaved:
                self._flusher = None  # the next frame starts it again
                return
            frames = self.frames.take_unsaved()
            try:
                await self._owner.save_frames(self.response_id, frames)
            except StoreBusy:
                self.frames.put_back(frames)  # what is saved later must not leave a hole
            except SessionFaulted:
                return  # the fault ends the pass, and tells whoever drives
            else:
                self._saved_bytes += len(codec.encode(frames))

    async def _grace(self) -> None:
        clock = self._runtime.clock
        await clock.sleep_until(clock.now_ms() + self._grace_ms)
        if self._ended:
            return
        hook = None if self._hooks is None else self._hooks.asking
        what = f"a request to model {self.identity}" if hook is None else f"hook {hook.name!r} at {hook.point}"
        self._runtime.found(f"{what} did not end within {self._grace_ms} ms and was left behind")
        aborted = ErrorInfo(code="aborted", message="the run was aborted")
        self._end((self._whole or self._partial("aborted", aborted)) if self._stopped_by == "abort" else None)

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        if self._ended:
            if not self._told:  # Ctrl-C came in the middle of the report: nothing is known of its end
                if not task.cancelled():
                    task.exception()  # it is raised by the loop
                self._owner.answer(None)
            return
        if (
            not task.cancelled()
            and (error := task.exception()) is not None
            and not isinstance(error, KeyboardInterrupt)
        ):
            self._runtime.found(f"model request: the library failed: {error!r}")
        aborted = ErrorInfo(code="aborted", message="the run was aborted before the request was sent")
        self._end(self._partial("aborted", aborted) if self._stopped_by == "abort" else None)

    def _end(self, message: AssistantMessage | None) -> None:
        if self._ended:
            return
        self._ended = self._mark.ended = True
        current = asyncio.current_task()
        for task in (self._flusher, self._timer):
            if task is not None and task is not current:
                task.cancel()
        self._owner.answer(message)
        self._told = True


def _copied(message: AssistantMessage) -> AssistantMessage:
    """The message as it will be read back; ``InvalidMessage`` if it was built with wrong types."""
    _, copy = codec.BODY.seal(message, "answer")
    if not isinstance(copy, AssistantMessage):
        raise InvalidMessage("answer: it does not read back as an answer")
    return copy


def _known(usage: Usage) -> Usage | None:
    """Usage that an adapter reported with its failure; what it garbled is unknown."""
    try:
        return reported_usage(usage, "usage")
    except InvalidMessage:
        return None


def _provider_aborted() -> ErrorInfo:
    return ErrorInfo(code="model_error", message="the provider ended the answer before it was whole", retryable=True)
