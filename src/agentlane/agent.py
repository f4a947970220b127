"""Agent: the process-local definitions that a lane runs with. Nothing of it is stored but names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import import_module
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Generic, TypeAlias

from msgspec import UNSET, Struct
from typing_extensions import TypeVar

from agentlane.data import codec
from agentlane.data.border import clean_object, clean_text, copied
from agentlane.data.messages import ModelIdentity, UserMessage
from agentlane.data.operations import (
    WHOLE_MAX,
    CompactionPolicy,
    LaneConfig,
    Limits,
    OperationConfig,
    PlaceMode,
    RetryPolicy,
    RunLimits,
)
from agentlane.data.requests import Skill, Template, checked_named
from agentlane.data.tokens import TokenCounter
from agentlane.errors import InvalidDefinition, InvalidMessage, UnknownModel, UnknownTool
from agentlane.hooks import Hook
from agentlane.model import Model
from agentlane.names import check_name
from agentlane.output import OutputType
from agentlane.skills.definitions import LOAD_SKILL, Folders, SkillDefinition, TemplateDefinition, unknown
from agentlane.tool import Tool

if TYPE_CHECKING:
    from agentlane.skills.library import Library

Deps = TypeVar("Deps", default=Any)
Output = TypeVar("Output", default=str)


USUAL_COMPACTION = CompactionPolicy()
"""The policy of an agent that says nothing of its own."""


class RunInfo(Struct, Generic[Deps], frozen=True):
    """What an instructions function is told: where it is asked, and the agent's dependencies."""

    session_id: str
    lane: str
    operation_id: str
    deps: Deps


Instructions: TypeAlias = str | Callable[[RunInfo[Any]], str | Awaitable[str]]

Projector: TypeAlias = Callable[[Any], str | UserMessage | None]
"""What the data of an application's entry is to the model; None: nothing."""


class Agent(Generic[Deps, Output]):
    """A model, tools and instructions under a name.

    - ``model`` answers unless ``lane.configure(model=...)`` chose others of ``model`` and ``models``. Of a list the
      first is asked at the beginning of each turn. After a retryable failure the next attempt goes to the next one, at
      once; the last one is asked again, after a wait. ``retry.attempts`` bounds all attempts of a turn together.
      A model can be given as ``"provider:name"``, which the adapter of that provider answers for; see
      ``agentlane.models``.
    - ``instructions`` is a text, or a plain or async function of a ``RunInfo`` that is asked before each request.
    - ``settings`` is JSON data handed to the model with each request.
    - ``approval_expires_ms`` is how long an approval waits until it counts as a no, unless its tool says; None is for
      ever.
    - ``hooks`` are asked at fixed points of a run, in order; see ``hook``. ``max_follow_ups`` bounds how many messages
      they may put behind the answers of one run; what is beyond it is reported and dropped.
    - ``max_turns``, ``max_requests``, ``max_tokens``, ``max_cost_nanos``, ``max_time_ms`` and ``max_identical_calls``
      are bounds at which an operation ends as ``failed`` with the code ``limit_reached``; see ``RunLimits``. They are
      looked at when the model is about to be asked, with every call answered: they cut no answer and no running tool.
    - ``output`` is a type that msgspec reads from JSON. Its schema goes with each request, and the answer that ends a
      run is decoded and checked: ``result.output`` has the JSON data, ``lane.output(result)`` the value. Where it does
      not fit, the model is told so and asked again, ``max_output_retries`` times, and then the run fails with the code
      ``invalid_output``.
    - ``skills`` names folders, each a skill (a ``SKILL.md`` with what belongs to it) or a folder of skills, and
      ``templates`` folders of Markdown files, or such files. They are read here, once: what is changed in them later is
      seen by an agent that is defined then. With skills the model is told their names and what they are for behind the
      instructions, and has the tool ``load_skill``, which reads them and the files beside them.
    - ``projectors`` are plain functions by the type of an application's entries. Each is given an entry's data and says
      what the model is shown in its place: a text, a ``UserMessage``, or None for nothing. It is asked once when an
      entry comes to a lane, and again when the lane is read from its store, so it has to say the same of the same data;
      nothing of it is stored. Inside a batch of calls the entry is shown behind the results. One that fails, or says
      anything else, is a finding of the session, and its entry is not shown. Entries of other types show nothing.
    - ``steering`` and ``follow_ups`` say whether all that waits is placed at one boundary, or one at a time, each
      answered before the next.
    - ``compaction`` says when what the model is shown is summarized, and how much of it is kept; None: only when
      ``lane.compact`` asks. It needs to know the model's window: from the model's ``limits``, or the policy. A request
      that a provider refuses as too long is made once more behind a summary in any case but None.
      ``token_counter`` is a function that counts the tokens of one message, in the place of an estimate that errs on
      the side of too many; where it fails the estimate is taken.
    - These, ``retry`` and the limits are captured when an operation is accepted; see ``RetryPolicy`` and ``Limits``.

    Raises ``InvalidDefinition`` or ``InvalidName`` for what cannot work.
    """

    def __init__(
        self,
        name: str = "agent",
        *,
        model: Model | str | Sequence[Model | str],
        models: Sequence[Model | str] = (),
        tools: Sequence[Tool[Any, Any]] = (),
        instructions: Instructions = "",
        settings: Mapping[str, Any] | None = None,
        deps: Deps = None,  # type: ignore[assignment]
        retry: RetryPolicy | None = None,
        max_restarts: int = 3,
        max_replays: int = 3,
        max_parallel: int = 8,
        cancel_grace_ms: int = 2_000,
        max_result_bytes: int = 262_144,
        approval_expires_ms: int | None = None,
        max_turns: int | None = None,
        max_requests: int | None = None,
        max_tokens: int | None = None,
        max_cost_nanos: int | None = None,
        max_time_ms: int | None = None,
        max_identical_calls: int | None = None,
        output: type[Output] | None = None,
        max_output_retries: int = 2,
        hooks: Sequence[Hook] = (),
        max_follow_ups: int = 10,
        steering: PlaceMode = "all",
        follow_ups: PlaceMode = "one",
        skills: Folders = (),
        templates: Folders = (),
        compaction: CompactionPolicy | None = USUAL_COMPACTION,
        token_counter: TokenCounter | None = None,
        projectors: Mapping[str, Projector] | None = None,
    ) -> None:
        self.name = check_name(name, "agent")
        self.instructions = self._checked_instructions(instructions)
        self.settings: dict[str, Any] = clean_settings({} if settings is None else settings)
        self.deps = deps
        self.retry = self._checked_retry(retry)
        self.limits = Limits(
            max_restarts=_at_least("max_restarts", max_restarts, 0),
            max_replays=_at_least("max_replays", max_replays, 0),
            max_parallel=_at_least("max_parallel", max_parallel, 1),
            cancel_grace_ms=_at_least("cancel_grace_ms", cancel_grace_ms, 0),
            max_result_bytes=_at_least("max_result_bytes", max_result_bytes, 1),
        )
        self.run_limits = RunLimits(
            max_turns=_bound("max_turns", max_turns),
            max_requests=_bound("max_requests", max_requests),
            max_tokens=_bound("max_tokens", max_tokens),
            max_cost_nanos=_bound("max_cost_nanos", max_cost_nanos),
            max_time_ms=_bound("max_time_ms", max_time_ms),
            max_identical_calls=_bound("max_identical_calls", max_identical_calls),
        )
        self.approval_expires_ms = _bound("approval_expires_ms", approval_expires_ms)
        self.output: OutputType[Output] | None = None if output is None else OutputType(output)
        self.max_output_retries = _at_least("max_output_retries", max_output_retries, 0)
        self.steering = _place_mode("steering", steering)
        self.follow_ups = _place_mode("follow_ups", follow_ups)
        self.token_counter = self._checked_counter(token_counter)
        self.models: dict[ModelIdentity, Model] = {}
        chosen: tuple[Any, ...] = tuple(model) if isinstance(model, list | tuple) else (model,)
        if not chosen:
            raise InvalidDefinition(f"agent {self.name!r}: model={model!r} is an empty list; give at least one")
        self._identities: tuple[ModelIdentity, ...] = ()
        made = [_model(each) for each in (*chosen, *self._items("models", models))]
        for number, each in enumerate(made, start=1):
            self.models[self._checked_identity(each)] = each
            if number == len(chosen):
                self._identities = tuple(self.models)
        self.model = made[0]
        self.compaction = self._checked_compaction(compaction)
        self.tools = self._checked_tools(tools)
        self._library = self._read(skills, templates)
        self.max_follow_ups = _at_least("max_follow_ups", max_follow_ups, 0)
        self.hooks: tuple[Hook, ...] = self._checked_hooks(hooks)
        self.projectors = self._checked_projectors({} if projectors is None else projectors)
        self._check_that_it_reads_back()

    def __repr__(self) -> str:
        return f"Agent({self.name!r})"

    @property
    def skills(self) -> Mapping[str, SkillDefinition]:
        """Its skills by name, in the order of the names."""
        return {} if self._library is None else dict(self._library.skills.all)

    @property
    def templates(self) -> Mapping[str, TemplateDefinition]:
        """Its templates by name, in the order of the names."""
        return {} if self._library is None else dict(self._library.templates.all)

    def expand(self, request: Skill | Template) -> UserMessage:
        """The message that ``accept`` places for a skill or a template: for verbs that take messages, and to look at.

        Raises ``InvalidMessage`` for a name that the agent does not have (it lists those that it has), for arguments
        that are missing or have no place in the template (it names them), and for what is no text;
        ``PayloadTooLarge`` where the arguments make too much of it.
        """
        if not isinstance(request, Skill | Template):
            raise InvalidMessage(f"request: a Skill or a Template is needed here, not {type(request).__name__}")
        clean = checked_named(request)
        if self._library is None:
            raise unknown("skill" if isinstance(clean, Skill) else "template", clean.name, ())
        return self._library.expand(clean)

    def shown_instructions(self, instructions: str, tools: Sequence[str]) -> str:
        """Instructions as the model is shown them: with the list of skills, if it has the tool that reads them."""
        if self._library is None or self._library.tool is None:
            return instructions
        if LOAD_SKILL not in tools or LOAD_SKILL not in self.tools:
            return instructions
        listed = self._library.skills.listed
        return f"{instructions}\n\n{listed}" if instructions else listed

    def model_identities(
        self, wanted: str | ModelIdentity | Model | Sequence[str | ModelIdentity | Model]
    ) -> tuple[ModelIdentity, ...]:
        """The identities of some of this agent's models, each once, in order."""
        if not isinstance(wanted, list | tuple):
            return (self.model_identity(wanted),)  # type: ignore[arg-type]
        if not wanted:
            raise UnknownModel(f"agent {self.name!r}: model=[] names none; give at least one", wanted="")
        return tuple(dict.fromkeys(self.model_identity(each) for each in wanted))

    def model_identity(self, wanted: str | ModelIdentity | Model) -> ModelIdentity:
        """The identity of one of this agent's models, given it, its ``provider:name``, or the model."""
        for identity, model in self.models.items():
            if wanted is model or wanted in (identity, str(identity)):
                return identity
        known = ", ".join(str(identity) for identity in self.models)
        raise UnknownModel(f"agent {self.name!r} has no model {wanted!s}; it has {known}", wanted=str(wanted))

    def tool_names(self, wanted: Sequence[str]) -> tuple[str, ...]:
        """Checked names of this agent's tools, each once."""
        if isinstance(wanted, str):
            raise UnknownTool(f"tools={wanted!r}: a list of names is needed here, not one text", wanted=wanted)
        try:
            given: tuple[object, ...] = tuple(wanted)
        except TypeError as error:
            raise UnknownTool(
                f"tools={wanted!r}: a list of names is needed here, not {type(wanted).__name__}", wanted=repr(wanted)
            ) from error
        names: dict[str, None] = {}
        for name in given:
            if not isinstance(name, str) or name not in self.tools:
                known = ", ".join(self.tools) or "none"
                raise UnknownTool(f"agent {self.name!r} has no tool {name!r}; it has {known}", wanted=str(name))
            names[self.tools[name].name] = None
        return tuple(names)

    def _read(self, skills: Folders, templates: Folders) -> Library | None:
        if all(isinstance(each, list | tuple) and not each for each in (skills, templates)):
            return None
        from agentlane.skills.library import Library  # not for a program whose agents have neither

        library = Library(self.name, skills, templates)
        if library.tool is not None:
            if LOAD_SKILL in self.tools:
                raise InvalidDefinition(
                    f"agent {self.name!r}: a tool is named {LOAD_SKILL!r}, as the one that reads the agent's skills; "
                    "give it another name"
                )
            self.tools[LOAD_SKILL] = library.tool
        return library

    def _checked_instructions(self, instructions: object) -> Instructions:
        if isinstance(instructions, str):
            return clean_text(instructions, "instructions")
        if callable(instructions):
            return instructions
        raise InvalidDefinition(
            f"agent {self.name!r}: instructions={instructions!r} must be a text, or a function of a RunInfo"
        )

    def _checked_retry(self, retry: object) -> RetryPolicy:
        if retry is None:
            return RetryPolicy()
        if not isinstance(retry, RetryPolicy):
            raise InvalidDefinition(
                f"agent {self.name!r}: retry={retry!r} is not a RetryPolicy; write RetryPolicy(attempts=3)"
            )
        return RetryPolicy(
            attempts=_at_least("retry.attempts", retry.attempts, 1),
            base_ms=_at_least("retry.base_ms", retry.base_ms, 0),
            cap_ms=_at_least("retry.cap_ms", retry.cap_ms, 0),
        )

    def _checked_compaction(self, policy: object) -> CompactionPolicy | None:
        if policy is None:
            return None
        if not isinstance(policy, CompactionPolicy):
            raise InvalidDefinition(
                f"agent {self.name!r}: compaction={policy!r} is not a CompactionPolicy; write "
                "CompactionPolicy(keep_tokens=20_000), or None"
            )
        window: object = policy.context_tokens
        if not isinstance(policy.instructions, str):
            raise InvalidDefinition(f"agent {self.name!r}: compaction.instructions must be a text")
        return CompactionPolicy(
            context_tokens=None if window is None else _at_least("compaction.context_tokens", window, 1),
            reserve_tokens=_at_least("compaction.reserve_tokens", policy.reserve_tokens, 0),
            keep_tokens=_at_least("compaction.keep_tokens", policy.keep_tokens, 0),
            max_summary_tokens=_at_least("compaction.max_summary_tokens", policy.max_summary_tokens, 1),
            instructions=clean_text(policy.instructions, "compaction.instructions"),
            model=None if policy.model is None else self._summary_model(policy.model),
        )

    def _summary_model(self, wanted: object) -> ModelIdentity:
        try:
            return self.model_identity(wanted)  # type: ignore[arg-type]
        except UnknownModel as error:
            raise InvalidDefinition(
                f"agent {self.name!r}: compaction.model={wanted!r} is none of its models, which are "
                f"{', '.join(map(str, self.models))}; add it to models="
            ) from error

    def _checked_counter(self, counter: TokenCounter | None) -> TokenCounter | None:
        if counter is not None and not callable(counter):
            raise InvalidDefinition(f"agent {self.name!r}: token_counter={counter!r} must be a function")
        return counter

    def _checked_tools(self, tools: Sequence[Any]) -> dict[str, Tool[Any, Any]]:
        checked: dict[str, Tool[Any, Any]] = {}
        for each in self._items("tools", tools):
            if not isinstance(each, Tool):
                raise InvalidDefinition(f"agent {self.name!r}: {each!r} is not a Tool; decorate it with @tool")
            if each.name in checked:
                raise InvalidDefinition(
                    f"agent {self.name!r}: two tools are named {each.name!r}; give one another "
                    f"name: tool(name='another')(obj.method) for a method, prefix= for those of a server"
                )
            checked[each.name] = each
        return checked

    def _checked_hooks(self, hooks: Sequence[Hook]) -> tuple[Hook, ...]:
        given = self._items("hooks", hooks)
        for each in given:
            if not isinstance(each, Hook):
                raise InvalidDefinition(
                    f"agent {self.name!r}: {each!r} is not a hook; write hook('before_tool', function)"
                )
        return given

    def _checked_projectors(self, projectors: object) -> dict[str, Projector]:
        if not isinstance(projectors, Mapping):
            raise InvalidDefinition(
                f"agent {self.name!r}: projectors={projectors!r} must map types of entries to functions"
            )
        checked: dict[str, Projector] = {}
        for type, projector in projectors.items():
            name = check_name(type, "custom entry type")
            if not callable(projector) or iscoroutinefunction(projector):
                raise InvalidDefinition(
                    f"agent {self.name!r}: the projector of {name!r} must be a plain function of an entry's data, not "
                    f"{projector!r}"
                )
            checked[name] = projector
        return checked

    def _checked_identity(self, model: object) -> ModelIdentity:
        identity = getattr(model, "identity", None)
        if not isinstance(identity, ModelIdentity):
            raise InvalidDefinition(f"agent {self.name!r}: {model!r} is not a model (it has no ModelIdentity)")
        for key in ("provider", "name"):
            text: object = getattr(identity, key)
            if type(text) is not str or clean_text(text) != text:
                raise InvalidDefinition(
                    f"agent {self.name!r}: a model's identity.{key}={text!r} must be a plain str without half "
                    "characters; it is stored with each answer"
                )
        return identity

    def _items(self, what: str, given: Sequence[Any]) -> tuple[Any, ...]:
        try:
            return tuple(given)
        except TypeError as error:
            raise InvalidDefinition(f"agent {self.name!r}: {what}={given!r} must be a list") from error

    def _check_that_it_reads_back(self) -> None:
        """What an accept stores of this agent can be read again, whatever the checks above let through."""
        try:
            codec.CONFIG.seal(self.resolve(LaneConfig(agent=self.name)), "configuration")
        except InvalidMessage as error:
            raise InvalidDefinition(f"agent {self.name!r}: it cannot be stored: {error}") from error

    def resolve(self, config: LaneConfig) -> OperationConfig:
        """The configuration of an operation that is accepted now on a lane with this configuration."""
        return OperationConfig(
            agent=self.name,
            models=self._identities if config.model is None else (config.model, *config.fallbacks),
            tools=tuple(self.tools) if config.tools is None else config.tools,
            settings=copied({**self.settings, **(config.settings or {})}),
            retry=self.retry,
            limits=self.limits,
            output_retries=UNSET if self.output is None else self.max_output_retries,
            run_limits=UNSET if self.run_limits == RunLimits() else self.run_limits,
            steering=UNSET if self.steering == "all" else self.steering,
            follow_ups=UNSET if self.follow_ups == "one" else self.follow_ups,
            compaction=UNSET if self.compaction == USUAL_COMPACTION else self.compaction,
        )


def clean_settings(settings: object) -> dict[str, Any]:
    """A copy of model settings, which are a JSON object; raises ``InvalidMessage`` with the path."""
    return clean_object(settings, "settings")


def _model(given: Any) -> Any:
    """The model itself. Adapters stand above this and are optional: the one that a name asks for is loaded here."""
    return import_module("agentlane.models.names").model_named(given) if isinstance(given, str) else given


def _place_mode(name: str, value: object) -> PlaceMode:
    if value == "all":
        return "all"
    if value == "one":
        return "one"
    raise InvalidDefinition(
        f"{name}={value!r} must be 'all' or 'one': how much of what waits is placed at one boundary"
    )


def _at_least(name: str, value: object, least: int) -> int:
    if type(value) is not int or not least <= value <= WHOLE_MAX:
        raise InvalidDefinition(f"{name}={value!r} must be a whole number of at least {least} and at most {WHOLE_MAX}")
    return value


def _bound(name: str, value: object) -> int | None:
    return None if value is None else _at_least(name, value, 1)
