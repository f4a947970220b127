"""Tools: declaring them, the JSON Schema of their arguments, and checking arguments against it."""

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, MutableSet, Sequence
from copy import deepcopy
from typing import Any, Generic, ParamSpec, TypeVar, get_args, overload

import msgspec
from msgspec import Struct

from agentlane.approval import ApprovalPredicate
from agentlane.data.border import clean_json, clean_text
from agentlane.data.messages import ToolCallPart, UserPart
from agentlane.data.operations import WHOLE_MAX, ReplayPolicy
from agentlane.errors import InvalidDefinition, InvalidMessage
from agentlane.model import ToolDefinition
from agentlane.names import check_name
from agentlane.tool_context import ToolContext

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
        _refuse_class(name, function)
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
        self.is_async = inspect.iscoroutinefunction(_target(function))
        self._validate = validate
        self._signature: _Signature | None = None

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
        own = _copied(arguments)  # what a tool does to its arguments does not change what the model asked
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
    parameters are read from an ``Args:`` section. Plain functions run in a thread. See ``ToolOptions`` for the
    options. A method is made a tool for one object: ``tool(obj.method)``, not in the class body.

    Raises ``InvalidDefinition`` if the signature has no schema, and for a class or a method without its object.
    """

    def build(function: Callable[P, R]) -> Tool[P, R]:
        signature = _Signature(function)
        built = Tool(
            _name_of(function) if name is None else name,
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


class _Signature:
    """The arguments of a function as one record type, from which the schema and the check follow."""

    def __init__(self, function: Callable[..., Any]) -> None:
        name = _name_of(function)
        _refuse_class(name, function)
        try:
            hints = typing.get_type_hints(_target(function), include_extras=True)
            parameters = inspect.signature(function).parameters
        except (NameError, TypeError, ValueError) as error:
            raise InvalidDefinition(f"tool {name!r}: its signature cannot be read: {error}") from error
        _refuse_unbound(name, function, parameters)
        self.description, texts = _docstring(_target(function))
        self._context: str | None = None
        bound = function.keywords if isinstance(function, functools.partial) else {}
        fields: list[Any] = []
        for key, parameter in parameters.items():
            if key in bound:
                continue  # a partial has it already
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise InvalidDefinition(
                    f"tool {name!r}: parameter {key!r} must be an ordinary one that can be given by name"
                )
            if key.startswith("__"):
                raise InvalidDefinition(
                    f"tool {name!r}: parameter {key!r} must not begin with two underscores; give it another name"
                )
            hint = hints.get(key, Any)
            if _is_context(hint):
                if self._context is not None:
                    raise InvalidDefinition(
                        f"tool {name!r}: two parameters, {self._context!r} and {key!r}, are contexts"
                    )
                self._context = key
                continue
            fields.append(_field(key, hint, parameter.default, texts.get(key)))
        try:
            self._record = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
            self.schema = _inlined(msgspec.json.schema(self._record))
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidDefinition(f"tool {name!r}: no JSON Schema for its parameters: {error}") from error
        self._names = tuple(self._record.__struct_fields__)

    def convert(self, arguments: dict[str, Any]) -> Any:
        return msgspec.convert(arguments, self._record)

    def named(self, record: Any) -> dict[str, Any]:
        return {name: getattr(record, name) for name in self._names}

    def keywords(self, record: Any, context: ToolContext[Any]) -> dict[str, Any]:
        keywords = self.named(record)
        if self._context is not None:
            keywords[self._context] = context
        return keywords


def _refuse_class(name: str, function: Callable[..., Any]) -> None:
    if inspect.isclass(_target(function)):
        raise InvalidDefinition(
            f"tool {name!r}: a class cannot be a tool, for a call would give an object; make a tool of a function "
            "that uses it, or of a method of one object: tool(obj.method)"
        )


def _refuse_unbound(name: str, function: Callable[..., Any], parameters: Mapping[str, object]) -> None:
    """A method that no object is bound to would ask the model for the object."""
    first = next(iter(parameters), "")
    within = getattr(_target(function), "__qualname__", "").rpartition(".")[0]
    bound = function.keywords if isinstance(function, functools.partial) else {}
    if first in ("self", "cls") and first not in bound and within and not within.endswith("<locals>"):
        raise InvalidDefinition(
            f"tool {name!r}: it is a method of class {within!r} without an object, so the model would be asked for "
            f"{first!r}; leave the method as it is and make a tool of it for one object: tool(obj.{name})"
        )


def _field(name: str, hint: Any, default: Any, text: str | None) -> tuple[Any, ...]:
    annotated = typing.Annotated[hint, msgspec.Meta(description=text)] if text else hint
    if default is inspect.Parameter.empty:
        return (name, annotated)
    if _is_mutable(default):
        return (name, annotated, msgspec.field(default_factory=lambda: deepcopy(default)))
    return (name, annotated, default)


def _is_mutable(default: object) -> bool:
    """Whether a call could change this default for the next one. (Others, sentinels say, keep their identity.)"""
    if isinstance(default, type):
        return False
    records = isinstance(default, Struct) or hasattr(type(default), "__dataclass_fields__")
    return records or isinstance(default, MutableSequence | MutableMapping | MutableSet)


def _is_context(hint: Any) -> bool:
    """Whether a parameter's type is the context: as such, of some dependencies, annotated, or optional."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return _is_context(get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        return any(map(_is_context, get_args(hint)))
    return hint is ToolContext or origin is ToolContext


def _target(function: Any) -> Any:
    """What is run in the end: the function in a partial, the ``__call__`` of an object."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or inspect.isclass(function) or not callable(function):
        return function
    return type(function).__call__


def _copied(value: Any) -> Any:
    """A copy of clean JSON data."""
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    if type(value) is list:
        return [_copied(item) for item in value]
    return value


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with its outermost record at the top, as providers want it."""
    definitions = dict(schema.get("$defs", {}))
    top = definitions.pop(schema["$ref"].rsplit("/", 1)[-1]) if "$ref" in schema else dict(schema)
    top = {key: value for key, value in top.items() if key != "title"}
    if definitions:
        top["$defs"] = definitions
    return top


_SECTION = re.compile(r"^(Args|Arguments|Parameters):\s*$")
_END = re.compile(r"^(Returns?|Raises|Yields|Examples?|Notes?):\s*$")
_ARGUMENT = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")


def _docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """A docstring's description, and the texts of its ``Args:`` section."""
    description: list[str] = []
    texts: dict[str, str] = {}
    section, current, indent = "description", "", 0
    for line in (inspect.getdoc(function) or "").splitlines():
        text = line.strip()
        if _SECTION.match(line):
            section, current, indent = "arguments", "", 0
        elif _END.match(line):
            section = "other"
        elif section == "description":
            description.append(line)
        elif section == "arguments" and text:
            depth = len(line) - len(line.lstrip())
            indent = indent or depth
            found = _ARGUMENT.match(text) if depth <= indent else None
            if found:
                current = found[1]
                texts[current] = found[2]
            elif current:
                texts[current] = f"{texts[current]} {text}".strip()
    return "\n".join(description).strip(), texts


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


def _name_of(function: Callable[..., Any]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def _text_of(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except KeyboardInterrupt:
        raise
    except BaseException:  # foreign exceptions may fail in any way to print themselves
        return type(error).__name__
