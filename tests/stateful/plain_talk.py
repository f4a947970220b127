"""The plain model of what is said to lanes, and of what is taken back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.stateful.plain import Refused, first
from tests.stateful.plain_inbox import Body, Receipt
from tests.stateful.plain_pass import PlainRuns
from tests.stateful.talk import REQUEST_IDS, CancelQueued, Say, Submit, Talk, said


@dataclass
class PlainTalk(PlainRuns):
    """The plain model with its inboxes."""

    def talk(self, lane: str, action: Talk) -> Any:
        match action:
            case Say(_, kind, _, request):
                return self._say(lane, kind, tuple(("user", text) for text in said(action)), _key(request))
            case Submit(_, prompt, request, handle):
                return self._submit(lane, prompt % len(self.prompts), _key(request), handle)
            case CancelQueued(_, item):
                return self._take_back(lane, item)

    def _say(self, lane: str, kind: str, bodies: tuple[Body, ...], key: str | None) -> Any:
        known = self._known(lane, key, kind, bodies, submitted=False)
        if known is not None:
            return ("queued", first(known.where), known.kind)
        after = self.disk.copy()
        item = after.inbox.queue(lane, kind, bodies, key)
        self.commit("queue", after)
        return ("queued", first(self.queued(item)), kind)

    def _submit(self, lane: str, prompt: int, key: str | None, handle: int) -> Any:
        bodies: tuple[Body, ...] = (("user", f"prompt {prompt}"),)
        known = self._known(lane, key, "steer", bodies, submitted=True)
        if known is not None:
            return ("receipt", *known.seen())
        after = self.disk.copy()
        if self.disk.lanes[lane].current is not None:
            item = after.inbox.queue(lane, "steer", bodies, key, submitted=True)
            self.commit("queue", after)
            return ("receipt", "steer", True, "queued", self.queued(item), None)
        op = self.new_id()
        inputs = self.opened(after, lane, op, prompt, handle)
        receipt = Receipt("steer", bodies, True, inputs, "taken", op)
        after.inbox.receipts[lane, key or ("entry", inputs[0])] = receipt
        self.commit("accept", after)
        return ("receipt", *receipt.seen())

    def _known(
        self, lane: str, key: str | None, kind: str, bodies: tuple[Body, ...], *, submitted: bool
    ) -> Receipt | None:
        known = None if key is None else self.disk.inbox.receipts.get((lane, key))
        if known is not None and not known.says(kind, bodies, submitted=submitted):
            raise Refused("RequestConflict")
        return known

    def _take_back(self, lane: str, number: int) -> str:
        after = self.disk.copy()
        found = [item for item in after.inbox.of(lane) if item.number == number]
        if not found:
            return "already_consumed" if number in after.inbox.placed else "not_found"
        after.inbox.take_out(found[0], "cancelled", None)
        self.commit("cancel_queued", after)
        return "cancelled"


def _key(request: int | None) -> str | None:
    return None if request is None else REQUEST_IDS[request]
