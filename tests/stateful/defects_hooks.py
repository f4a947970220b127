"""Defects of hooks, put into the library on purpose, each with a short program on which it shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from agentlane import Agent, AssistantMessage
from agentlane.driver import hook_answers, navigating
from agentlane.driver.draft import OperationDraft
from agentlane.driver.generation import GenerationEffect
from agentlane.driver.hook_calls import HookCaller, HookFailed
from agentlane.driver.hooks import Gates
from agentlane.driver.open_operation import OpenOperation
from agentlane.driver.request_hooks import RequestHooks
from tests.stateful.defect import Defect, above_stores
from tests.stateful.hooks import Hook
from tests.stateful.moves import Rewind
from tests.stateful.programs import Abort, Call, Drive, Kill, Program, Reply, Resume, Run
from tests.stateful.talk import Say


def _other_order(patch: pytest.MonkeyPatch) -> None:
    init = Gates.__init__

    def turned(self: Gates, *given: Any) -> None:
        init(self, *given)
        self._before_finish = self._before_finish[::-1]

    patch.setattr(Gates, "__init__", turned)


def _never_blocks(patch: pytest.MonkeyPatch) -> None:
    ask = HookCaller.ask

    async def passing(self: HookCaller, hook: Any, info: Any, take: Any) -> Any:
        return await ask(self, replace(hook, on_error="continue"), info, take)

    patch.setattr(HookCaller, "ask", passing)


def _always_blocks(patch: pytest.MonkeyPatch) -> None:
    ask = HookCaller.ask

    async def blocking(self: HookCaller, hook: Any, info: Any, take: Any) -> Any:
        return await ask(self, replace(hook, on_error="block"), info, take)

    patch.setattr(HookCaller, "ask", blocking)


def _failures_not_reported(patch: pytest.MonkeyPatch) -> None:
    ask = HookCaller.ask

    async def silent(self: HookCaller, hook: Any, info: Any, take: Any) -> Any:
        try:
            return await ask(self, replace(hook, on_error="block"), info, take)
        except HookFailed:
            if hook.on_error == "block":
                raise
            return None

    patch.setattr(HookCaller, "ask", silent)


def _arguments_not_kept(patch: pytest.MonkeyPatch) -> None:
    def in_memory(self: OperationDraft, index: int, arguments: dict[str, Any]) -> None:
        self.args = {**self.args, index: arguments}

    patch.setattr(OperationDraft, "keep_arguments", in_memory)


def _asked_after_a_refusal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(hook_answers, "arguments_or_block", lambda value: value if isinstance(value, dict) else None)


def _result_not_changed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Gates, "changed_results", lambda self, draft: [])


def _placed_before_its_hook(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Gates, "held", lambda self, state: frozenset())


def _settings_of_the_operation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Gates, "settings", lambda self, state: self._operation.config.settings)


def _recovered_forgotten(patch: pytest.MonkeyPatch) -> None:
    take = OpenOperation.take_restored

    def forgetting(self: OpenOperation, restored: OpenOperation) -> None:
        take(self, restored)
        self.driven = False

    patch.setattr(OpenOperation, "take_restored", forgetting)


def _follow_ups_counted_anew(patch: pytest.MonkeyPatch) -> None:
    take = OpenOperation.take_restored

    def forgetting(self: OpenOperation, restored: OpenOperation) -> None:
        take(self, restored)
        self.follow_ups = 0

    patch.setattr(OpenOperation, "take_restored", forgetting)


def _said_under_an_abort(patch: pytest.MonkeyPatch) -> None:
    shown = GenerationEffect._shown_to_hooks

    async def lost(self: GenerationEffect, hooks: RequestHooks, whole: AssistantMessage) -> AssistantMessage:
        said = await shown(self, hooks, whole)
        return said if self._stopped_by != "abort" else replace(said, content=())

    patch.setattr(GenerationEffect, "_shown_to_hooks", lost)


def _frames_after_the_hook(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: GenerationEffect) -> None:
        pass

    patch.setattr(GenerationEffect, "_save_shown", nothing)


def _moves_unasked(patch: pytest.MonkeyPatch) -> None:
    async def nobody(lane: Any, agent: Agent[Any, Any], to: Any, label: Any, messages: Any) -> bool:
        return False

    patch.setattr(navigating, "_ask", nobody)


def _others_not_told(patch: pytest.MonkeyPatch) -> None:
    async def alone(self: RequestHooks, caller: HookCaller, messages: Sequence[Any]) -> Sequence[Any]:
        hooks = self._transform
        for hook in hooks:
            self._transform = (hook,)
            changed = await transform(self, caller, messages)
        self._transform = hooks
        return changed

    transform = RequestHooks.transform
    patch.setattr(RequestHooks, "transform", alone)


ONE_CALL = ((Reply("calls", (Call("safe", hang=1),)),),)
CALLS = ((Reply("calls", (Call("safe"),)),),)
CUT = ((Reply("length", (Call("safe"), Call("key"))),),)

HOOK_DEFECTS = above_stores(
    Defect(
        "hooks are asked in another order",
        _other_order,
        Program((Run(),), hooks=(Hook("before_finish", "change"), Hook("before_finish", "change"))),
    ),
    Defect("a failure stands in nobody's way", _never_blocks, Program((Run(),), hooks=(Hook("before_run", "raise"),))),
    Defect(
        "a failure stands in the way of a run",
        _always_blocks,
        Program((Run(),), hooks=(Hook("before_request", "wrong", "continue"),)),
    ),
    Defect(
        "a failure is not reported", _failures_not_reported, Program((Run(),), hooks=(Hook("after_response", "raise"),))
    ),
    Defect(
        "a replay has the arguments of the model",
        _arguments_not_kept,
        Program((Run(), Kill(), Resume()), ONE_CALL, (Hook("before_tool", "change"),)),
    ),
    Defect(
        "a refused call starts",
        _asked_after_a_refusal,
        Program((Run(),), CALLS, (Hook("before_tool", "block", plain=True),)),
    ),
    Defect("a result stays as it was", _result_not_changed, Program((Run(),), CALLS, (Hook("after_tool", "change"),))),
    Defect(
        "a result is placed before its hook has spoken",
        _placed_before_its_hook,
        Program((Run(), Kill(), Resume()), CUT, (Hook("after_tool", "change", hang=2),)),
    ),
    Defect(
        "a request has the settings of its operation",
        _settings_of_the_operation,
        Program((Run(),), hooks=(Hook("before_request", "change"),)),
    ),
    Defect(
        "a hook is not told that it may have been asked before",
        _recovered_forgotten,
        Program((Run(), Kill(), Resume()), hooks=(Hook("before_run", hang=1),)),
    ),
    Defect(
        "follow-ups are counted anew by a restart",
        _follow_ups_counted_anew,
        Program((Run(), Kill(), Resume()), ((Reply(), Reply("hang")),), (Hook("before_finish", "change"),)),
    ),
    Defect(
        "an answer is lost by an abort in its hook",
        _said_under_an_abort,
        Program((Run(), Abort(), Drive()), CALLS, (Hook("after_response", hang=1),)),
    ),
    Defect(
        "an answer is not kept while its hook speaks",
        _frames_after_the_hook,
        Program((Run(), Kill(), Resume()), CALLS, (Hook("after_response", hang=1),)),
    ),
    Defect(
        "a lane moves unasked", _moves_unasked, Program((Run(), Rewind()), hooks=(Hook("before_navigation", "block"),))
    ),
    Defect(
        "a hook is not told what those before it made",
        _others_not_told,
        Program((Say(), Run()), hooks=(Hook("transform_context", "change"), Hook("transform_context", "change"))),
    ),
)
