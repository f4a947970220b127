"""Tools: declaring them, and checking a model's arguments for them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, get_args, overload

import msgspec
from msgspec import Struct

from agentlane.approval import ApprovalPredicate
from agentlane.data.border import clean_json, clean_text, copied
from agentlane.data.messages import ToolCallPart, UserPart
from agentlane.data.operations import WHOLE_MAX, ReplayPolicy
from agentlane.errors import InvalidDefinition, InvalidMessage, InvalidName
from agentlane.model import ToolDefinition
from agentlane.names import check_name
from agentlane.signatures.functions import name_of, refuse_class, target_of
from agentlane.tool_context import ToolContext

if TYPE_CHECKING:
    from agentlane.signatures.signature import Signature

P = ParamSpec("P")
R = TypeVar("R")


class ToolResult(Struct, frozen=True, kw_only=True):
    """A tool's full answer: what the model sees, JSON ``details`` for the application, and the wish to end the run."""

    content: str | Sequence[UserPart]
    details: Any = None
    is_error: bool = False
    terminate: bool = False


class PendingResult(Struct, frozen=True):
    """What a tool returns when its result comes later: the call then waits, over restarts, until ``lane.deliver``."""


class RetryTool(Exception):
    """Raised by a tool to have the model mend its call: the text becomes the call's error result."""


class NotStarted(Exception):
    """Raised by a tool that could not begin, so that nothing of its effect has happened: no server, no connection.

    The text says why. The call gets an error result that says that it was not started, and that it had no effect; on an
    abort it is told as one that was never started, and on a close it is planned again, whatever its policy, and starts
    when the operation goes on. Only a tool that is certain may raise it: once anything was sent, it no longer is.
    """


class ArgumentsError(Exception):
    """The model's arguments do not fit; the text says where and why. Made by the library, shown to the model."""


class ToolOptions(Struct, frozen=True, kw_only=True):
    """What every tool declares, however it is built.

    - ``replay``: what may happen to a call that was under way when the process died. ``never`` (the default): it gets
      an interruption result. ``safe``: repeating it changes nothing, so it runs again. ``idempotent``: it runs again
      with the same ``ToolContext.idempotency_key``, which the receiver honours. ``ask``: a person is asked, and a yes
      lets it run once more.
    - ``parallel``: False makes it a barrier: calls before it end first, it runs alone, then later ones.
    - ``timeout_ms``: how long a call may run; None is without limit.
    - ``max_result_bytes``: how much a result may hold, its content and its ``details`` each; None takes the agent's.
      Text is cut there with a mark; an image, a part or details that do not fit are left out with one. Whatever is
      said here, a result that takes more than 64 MiB as it is stored is that call's error result.
    - ``approval``: whether a person is asked before each call starts: True, or a plain or async function of the checked
      arguments and an ``ApprovalInfo`` that says so for one call. What it raises is that call's error result.
    - ``approval_expires_ms``: how long an approval waits until it counts as a no; None takes the agent's.
    """

    replay: ReplayPolicy = "never"
    parallel: bool = True
    timeout_ms: int | None = None
    max_result_bytes: int | None = None
    approval: bool | ApprovalPredicate = False
    approval_expires_ms: int | None = None


class Tool(Generic[P, R]):
    """A function that the model may call. Build one with ``@tool``, or by hand from a JSON Schema.

    By hand, ``function`` takes the arguments object and a ``ToolContext``, and ``validate`` may check the object and
    give back what the function gets; anything it raises becomes an error result that the model can mend.
    """

    def __init__(
        self,
        name: str,
        function: Callable[P, R],
        *,
        description: str = "",
        parameters: Mapping[str, Any] | None = None,
        validate: Callable[[dict[str, Any]], Any] | None = None,
        replay: ReplayPolicy = "never",
        parallel: bool = True,
        timeout_ms: int | None = None,
        max_result_bytes: int | None = None,
        approval: bool | ApprovalPredicate = False,
        approval_expires_ms: int | None = None,
    ) -> None:
        self.name = name = check_name(name, "tool")
        functions: dict[str, object] = {"function": function}
        if validate is not None:
            functions["validate"] = validate
        for what, given in functions.items():
            if not callable(given):
                raise InvalidDefinition(f"tool {name!r}: {what}={given!r} must be a function")
        refuse_class(name, function)
        self.function = function
        self.description = description
        self.options = _checked_options(
            name,
            ToolOptions(
                replay=replay,
                parallel=parallel,
                timeout_ms=timeout_ms,
                max_result_bytes=max_result_bytes,
                approval=approval,
                approval_expires_ms=approval_expires_ms,
            ),
        )
        schema = {"type": "object", "properties": {}} if parameters is None else parameters
        try:
            self.definition = ToolDefinition(
                name=name,
                description=clean_text(description, "description"),
                parameters=clean_json(dict(schema), "parameters"),
            )
        except (InvalidMessage, TypeError, ValueError) as error:
            raise InvalidDefinition(f"tool {name!r}: its description or parameters cannot be sent: {error}") from error
        self.is_async = inspect.iscoroutinefunction(target_of(function))
        self._validate = validate
        self._signature: Signature | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, as if it were not a tool."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Tool({self.name!r}, replay={self.options.replay!r})"

    def shown(self) -> ToolDefinition:
        """The definition for one request: a copy, which an adapter may change."""
        definition = self.definition
        return ToolDefinition(
            name=definition.name,
            description=definition.description,
            parameters=msgspec.json.decode(msgspec.json.encode(definition.parameters)),
        )

    def check(self, arguments: dict[str, Any] | None, arguments_text: str | None) -> Any:
        """The arguments as the function takes them; raises ``ArgumentsError`` with a text for the model."""
        if arguments is None:
            shown = (arguments_text or "")[:200]
            raise ArgumentsError(f"The arguments of {self.name!r} are not a JSON object: {shown!r}. Send one object.")
        own = copied(arguments)  # what a tool does to its arguments does not change what the model asked
        try:
            if self._signature is not None:
                return self._signature.convert(own)
            return own if self._validate is None else self._validate(own)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a validator is foreign code and may raise anything, SystemExit included
            raise ArgumentsError(f"The arguments of {self.name!r} are not valid: {_text_of(error)}") from error

    def check_call(self, call: ToolCallPart) -> Any:
        """``check`` for the arguments of a call."""
        return self.check(call.arguments, call.arguments_text)

    def named(self, checked: Any) -> Any:
        """Checked arguments as a predicate sees them: of a function by name, else as they are."""
        return checked if self._signature is None else self._signature.named(checked)

    def call(self, checked: Any, context: ToolContext[Any]) -> Any:
        """Run the function on checked arguments; a coroutine if it is async."""
        function: Callable[..., Any] = self.function
        if self._signature is None:
            return function(checked, context)
        return function(**self._signature.keywords(checked, context))


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    replay: ReplayPolicy = "never",
    parallel: bool = True,
    timeout_ms: int | None = None,
    max_result_bytes: int | None = None,
    approval: bool | ApprovalPredicate = False,
    approval_expires_ms: int | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(
    function: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    replay: ReplayPolicy = "never",
    parallel: bool = True,
    timeout_ms: int | None = None,
    max_result_bytes: int | None = None,
    approval: bool | ApprovalPredicate = False,
    approval_expires_ms: int | None = None,
) -> Tool[P, R] | Callable[[Callable[P, R]], Tool[P, R]]:
    """Make an async or plain function a tool. The schema comes from its signature, the texts from its docstring.

    A parameter annotated with ``ToolContext`` gets the call's context and is not shown to the model. Descriptions of
    parameters are read from the docstring, in the style of Google, NumPy or reStructuredText. Plain functions run in a
    thread. See ``ToolOptions`` for the options. A method is made a tool for one object: ``tool(obj.method)``, or by
    ``tools_of``; not in the class body.

    A parameter may be text, a number, a bool, a list, tuple, set or dict, ``Literal``, an ``Enum``, a date, time, UUID,
    decimal or path, a dataclass, ``TypedDict``, ``NamedTuple`` or msgspec ``Struct``, a choice or a recursion of these,
    with constraints of ``msgspec.Meta`` or annotated-types; or whatever pydantic reads, if a type of pydantic is in it.
    The schema is the same, byte for byte, in every process.

    Raises ``InvalidDefinition`` if a parameter has no schema, naming it and the way out, and for a class or a method
    without its object.
    """

    def build(function: Callable[P, R]) -> Tool[P, R]:
        from agentlane.signatures.signature import Signature  # what looks at types is not needed by every program

        signature = Signature(function)
        built = Tool(
            _own_name(function) if name is None else name,
            function,
            description=signature.description if description is None else description,
            parameters=signature.schema,
            replay=replay,
            parallel=parallel,
            timeout_ms=timeout_ms,
            max_result_bytes=max_result_bytes,
            approval=approval,
            approval_expires_ms=approval_expires_ms,
        )
        built._signature = signature
        return built

    return build if function is None else build(function)


def _own_name(function: Callable[..., Any]) -> str:
    try:
        return check_name(name_of(function), "tool")
    except InvalidName as error:
        raise InvalidName(f"{error}; give it another one: tool(name='another')(function)", **error.details) from error


def _checked_options(name: str, options: ToolOptions) -> ToolOptions:
    if options.replay not in get_args(ReplayPolicy):
        raise InvalidDefinition(
            f"tool {name!r}: replay={options.replay!r} is not one of {', '.join(get_args(ReplayPolicy))}"
        )
    if type(options.parallel) is not bool:
        raise InvalidDefinition(f"tool {name!r}: parallel={options.parallel!r} must be True or False")
    if type(options.approval) is not bool and not callable(options.approval):
        raise InvalidDefinition(
            f"tool {name!r}: approval={options.approval!r} must be True, False, or a function of a call's arguments "
            "and an ApprovalInfo"
        )
    for key in ("timeout_ms", "max_result_bytes", "approval_expires_ms"):
        value = getattr(options, key)
        if value is not None and (type(value) is not int or not 0 < value <= WHOLE_MAX):
            raise InvalidDefinition(
                f"tool {name!r}: {key}={value!r} must be a positive whole number of at most {WHOLE_MAX}, or None"
            )
    return options


def _text_of(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except KeyboardInterrupt:
        raise
    except BaseException:  # foreign exceptions may fail in any way to print themselves
        return type(error).__name__
