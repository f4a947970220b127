"""MCP servers as an application holds them: started, restarted, asked for their tools, and closed without a trace."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import Context, copy_context
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, TypedDict

import mcp_types
from msgspec import Struct, structs
from typing_extensions import Unpack

from agentlane import (
    Clock,
    InvalidDefinition,
    InvalidName,
    RetryPolicy,
    SystemClock,
    Tool,
    ToolContext,
    ToolDefinition,
    ToolOptions,
    ToolResult,
    WrongLoop,
)
from agentlane.mcp.calling import RemoteCall
from agentlane.mcp.connection import Connection
from agentlane.mcp.declaring import checked_prefix, declared, hinted_policy, shown_name
from agentlane.mcp.failures import ServerNotReady, text_of

ROUNDS_MAX = 2
"""How often a wait for a connection goes on to another one, where a server ends right after it was up."""

_log = logging.getLogger("agentlane.mcp")


class ServerStatus(Struct, frozen=True, kw_only=True):
    """How a server is: ``problem`` is what went wrong last, ``attempt`` the number of the attempt under way."""

    state: Literal["new", "connecting", "ready", "not_ready", "closed"]
    problem: str | None = None
    attempt: int = 0


class ServerOptions(TypedDict, total=False):
    """What every server may be given.

    - ``prefix`` of its tools' names, in place of the server's name; ``""`` leaves them as they are. What providers do
      not take in a name becomes ``_``, and such a name, or one longer than 64, ends in a digest.
    - ``trust_hints``: whether the application trusts what this server says of its tools. Without it every tool has the
      replay policy ``never``. With it ``readOnlyHint`` is ``safe`` and ``idempotentHint`` is ``idempotent``; one that
      is said to be destructive as well is ``never`` and ``ask``.
    - ``options`` are the application's own word on tools, by the server's names for them. They replace all that is
      said here, hints included; a name that the server does not offer is refused by ``tools()``.
    - ``timeout_ms`` is how long a call of any other tool may run; None, if left out, is without limit.
    - ``retry`` is how often, and with which waits, it is tried to start or reach the server, at first and whenever a
      call finds no connection (3 attempts, 500 ms doubling to 30 s, no jitter); ``start_timeout_ms`` is how long one
      attempt may take (30 s). ``clock`` measures both.
    - ``required``: whether ``start()`` raises if the server is not ready after all attempts (True). If not,
      ``tools()`` are none until it is; ``await ready()`` tries again.
    - ``on_change`` is a plain function of the server, called when its list of tools has changed. Tools that are in use
      take on changed texts and schemas by themselves; new ones are for an agent that is made anew.
    """

    prefix: str | None
    trust_hints: bool
    options: Mapping[str, ToolOptions]
    timeout_ms: int | None
    retry: RetryPolicy | None
    start_timeout_ms: int
    required: bool
    on_change: Callable[[McpServer], object] | None
    clock: Clock | None


class McpServer(ABC):
    """An MCP server whose tools an agent has; a ``StdioServer`` or an ``HttpServer``.

    Use it with ``async with``, or ``start()`` and ``close()``; then ``tools()`` are tools for ``Agent(tools=...)``. One
    server serves any number of lanes and sessions of its event loop. What belongs to it runs in tasks of its own, so
    that it may be started in one task and closed in another.

    ``name`` is how messages call it, and the prefix of its tools' names: its tool ``read`` is ``{name}__read`` here.
    The options are those of ``ServerOptions``.

    A call that finds the server gone starts it again. A call that certainly did not reach its tool gets an error result
    that says that it was not started. Where the connection is lost in the middle, a call whose policy is ``safe`` or
    ``idempotent`` is sent once more; any other gets an error result that says that its outcome is unknown.

    Raises ``InvalidName`` and ``InvalidDefinition`` for what cannot work.
    """

    def __init__(self, name: str, **options: Unpack[ServerOptions]) -> None:
        if not _is_text(name):
            raise InvalidName(f"MCP server {name!r}: a name is needed, such as 'files'")
        _check_options(name, options)
        prefix, retry, clock = options.get("prefix"), options.get("retry"), options.get("clock")
        self.name = name
        self.clock: Clock = SystemClock() if clock is None else clock
        self.context: Context = copy_context()
        self._prefix = checked_prefix(name if prefix is None else prefix, name)
        self._trust_hints = options.get("trust_hints", False)
        self._options = dict(options.get("options", {}))
        self._timeout_ms = options.get("timeout_ms")
        self._retry = RetryPolicy() if retry is None else retry
        self._start_timeout_ms = options.get("start_timeout_ms", 30_000)
        self._required = options.get("required", True)
        self._on_change = options.get("on_change")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._status = ServerStatus(state="new")
        self._current: Connection | None = None
        self._connections: set[Connection] = set()
        self._round: asyncio.Task[str | None] | None = None
        self._tools: dict[str, Tool[..., Any]] = {}
        self._offered: list[str] = []

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.status.state})"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def status(self) -> ServerStatus:
        """How it is now."""
        current = self._current
        if self._status.state == "ready" and (current is None or not current.alive):
            problem = "the connection ended" if current is None else current.problem
            return ServerStatus(state="not_ready", problem=problem)
        return self._status

    def tools(self) -> tuple[Tool[..., Any], ...]:
        """The tools that the server offered when it was asked last, in its order; those of before if it is gone.

        Raises ``InvalidDefinition`` if ``options`` names a tool that a server which was reached does not offer.
        """
        unknown = sorted(set(self._options) - set(self._offered)) if self._offered else []
        if unknown:
            raise InvalidDefinition(
                f"MCP server {self.name!r}: options are given for {', '.join(map(repr, unknown))}; it offers "
                f"{', '.join(map(repr, self._offered))}"
            )
        return tuple(self._tools[name] for name in self._offered if name in self._tools)

    async def start(self) -> None:
        """Start or reach the server, in as many attempts as ``retry`` says, and read its tools.

        Raises ``ServerNotReady`` if it is ``required`` and not ready then; nothing of it is left. A cancelled call
        leaves nothing either. Again on a server that was started it only waits for it.
        """
        self._check_place()
        try:
            await self.ready()
        except ServerNotReady:
            if self._required or self._status.state == "closed":
                await self.close()
                raise
        except BaseException:
            await self.close()
            raise

    async def ready(self) -> None:
        """Return once there is a connection, trying as ``start`` does; ``ServerNotReady`` if there is none then.

        A cancelled call leaves the attempts as they are: others may wait for them.
        """
        await self.connection()

    async def close(self) -> None:
        """End the server: what is under way is cancelled there, its process has ended and no task is left on return.

        A call that is under way here gets an error result that says that its outcome is unknown. Calls that come later
        are not started. A cancelled ``close`` ends all the same, and then raises.
        """
        if self._loop is None:
            self._status = ServerStatus(state="closed", problem="it is closed")
            return
        self._check_place()
        self._status = ServerStatus(state="closed", problem="it is closed")
        if self._round is not None:
            self._round.cancel()
        for each in self._connections:
            each.stop()
        cancelled: asyncio.CancelledError | None = None
        while left := [*(each.task for each in self._connections), *([self._round] if self._round is not None else [])]:
            try:
                await asyncio.wait(left)
            except asyncio.CancelledError as error:
                if cancelled is not None:
                    raise
                cancelled = error
        if cancelled is not None:
            raise cancelled

    async def connection(self) -> Connection:
        """For calls: a connection that is alive, made if there is none."""
        self._check_place()
        problem: str | None = None
        for _ in range(ROUNDS_MAX):
            if self._status.state == "closed":
                break
            current = self._current
            if current is not None and current.alive:
                return current
            if self._round is None:
                self._round = self._spawn_round()
            running = self._round
            await asyncio.wait({running})
            problem = None if running.cancelled() else running.result()
            if problem is not None:
                break
        current = self._current
        if current is not None and current.alive:
            return current
        why = self.status.problem if problem is None else problem
        raise ServerNotReady(f"the MCP server {self.name!r} is not ready: {why}", server=self.name)

    @abstractmethod
    def transport(self) -> tuple[AbstractAsyncContextManager[Any], Callable[[], None]]:
        """For connections: a new transport, and what is called once the handshake is over."""

    def listed(self, tools: Sequence[mcp_types.Tool]) -> None:
        """For connections: the server said which tools it has."""
        before = self._shown()
        first = not self._offered
        self._offered = []
        for each in tools:
            if each.name in self._offered:
                _log.warning("MCP server %r offers the tool %r twice: the first counts", self.name, each.name)
                continue
            try:
                self._declare(each)
            except Exception as error:  # what the server says may be anything
                self._tools.pop(each.name, None)
                _log.warning("MCP server %r: its tool %r is left out: %s", self.name, each.name, text_of(error))
            self._offered.append(each.name)
        if not first and before != self._shown() and self._on_change is not None:
            try:
                self._on_change(self)
            except Exception:
                _log.exception("MCP server %r: on_change raised", self.name)

    def _shown(self) -> list[tuple[str, ToolDefinition, ToolOptions]]:
        """What an application has of the list of tools, to tell whether it has changed."""
        made = [(name, self._tools[name]) for name in self._offered if name in self._tools]
        return [(name, tool.definition, tool.options) for name, tool in made]

    def _declare(self, offered: mcp_types.Tool) -> None:
        """Make a tool of an offer; one that there is already takes on what has changed."""
        name = offered.name
        options = self._options.get(name)
        if options is None:
            policy = hinted_policy(offered) if self._trust_hints else "never"
            options = ToolOptions(replay=policy, timeout_ms=self._timeout_ms)

        async def call(arguments: dict[str, Any], context: ToolContext[Any]) -> ToolResult:
            then = self._repeatable(name)
            return await RemoteCall(
                server=self,
                tool=name,
                arguments=arguments,
                context=context,
                repeatable=lambda: then and self._repeatable(name),
            ).run()

        made = declared(offered, shown_name(self._prefix, name), call, options)
        known = self._tools.setdefault(name, made)
        known.description, known.definition, known.options = made.description, made.definition, made.options

    def _repeatable(self, name: str) -> bool:
        """Whether a call of this tool may run twice, as far as is known now."""
        return name in self._tools and self._tools[name].options.replay in ("safe", "idempotent")

    def _spawn_round(self) -> asyncio.Task[str | None]:
        name = f"agentlane mcp {self.name} start"
        task = asyncio.Task(self._try_to_connect(), loop=self._loop, name=name, context=self.context.copy())
        task.add_done_callback(self._round_ended)
        return task

    def _round_ended(self, task: asyncio.Task[str | None]) -> None:
        self._round = None
        if task.cancelled() and self._status.state == "connecting":
            self._status = ServerStatus(state="not_ready", problem="starting it was stopped")

    def _connection_ended(self, connection: Connection, task: asyncio.Task[None]) -> None:
        self._connections.discard(connection)

    async def _try_to_connect(self) -> str | None:
        """All attempts: None, or what went wrong."""
        problem: str | None = None
        attempts = self._retry.attempts
        for attempt in range(1, attempts + 1):
            self._status = ServerStatus(state="connecting", problem=problem, attempt=attempt)
            if attempt > 1:
                delay_ms = min(self._retry.base_ms << min(attempt - 2, 40), self._retry.cap_ms)
                await self.clock.sleep_until(self.clock.now_ms() + delay_ms)
            connection = Connection(self)
            self._connections.add(connection)
            connection.task.add_done_callback(partial(self._connection_ended, connection))
            problem = await connection.up(self._start_timeout_ms)
            if problem is None:
                self._current = connection
                self._status = ServerStatus(state="ready")
                return None
            _log.info("MCP server %r: attempt %d of %d failed: %s", self.name, attempt, attempts, problem)
        problem = f"{attempts} attempt{'s' if attempts > 1 else ''} to start it failed, the last with {problem}"
        self._status = ServerStatus(state="not_ready", problem=problem)
        return problem

    def _check_place(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop, self.context = loop, copy_context()
        elif self._loop is not loop:
            raise WrongLoop(f"the MCP server {self.name!r} was started on another event loop; use one for each loop")


def _check_options(server: str, options: ServerOptions) -> None:
    """Refuse what would only show when the server is started, or not at all."""
    unknown = sorted(set(options) - set(ServerOptions.__annotations__))
    if unknown:
        raise InvalidDefinition(
            f"MCP server {server!r}: there is no option {', '.join(map(repr, unknown))}; the options are "
            f"{', '.join(ServerOptions.__annotations__)}"
        )
    _at_least_one(server, "start_timeout_ms", options.get("start_timeout_ms", 1))
    _at_least_one(server, "retry.attempts", (options.get("retry") or RetryPolicy()).attempts)
    for name, each in {**options.get("options", {}), "": ToolOptions(timeout_ms=options.get("timeout_ms"))}.items():
        if not _is_options(each):
            raise InvalidDefinition(f"MCP server {server!r}: options[{name!r}]={each!r} must be a ToolOptions")
        Tool(name or "timeout_ms", _check_options, **structs.asdict(each))  # says what cannot work


def _at_least_one(server: str, what: str, value: object) -> None:
    if type(value) is not int or value < 1:
        raise InvalidDefinition(f"MCP server {server!r}: {what}={value!r} must be a whole number of at least 1")


def _is_options(value: object) -> bool:
    return isinstance(value, ToolOptions)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)
