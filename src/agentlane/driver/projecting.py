"""Entries of applications as the model is shown them: as an agent's projectors say, which are held to what they may."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy

from agentlane.agent import Projector
from agentlane.data.entries import Custom
from agentlane.data.messages import UserMessage, user
from agentlane.data.requests import checked_user
from agentlane.driver.tool_results import error_text


class Projection:
    """The projectors of one agent. What they fail at is left out, and told to ``found`` once an entry."""

    def __init__(self, projectors: Mapping[str, Projector], found: Callable[[str], None]) -> None:
        self.projectors = projectors
        self._found = found
        self._told: set[str] = set()
        self._ahead: dict[str, UserMessage | None] = {}
        """What entries that are about to be placed will show."""

    def __call__(self, entry_id: str, custom: Custom) -> UserMessage | None:
        """What the model is shown of an entry; None: nothing."""
        if entry_id in self._ahead:
            return self._ahead.pop(entry_id)
        return self._asked(entry_id, custom)

    def ahead(self, entry_id: str, custom: Custom) -> UserMessage | None:
        """The same before the entry is taken, which then asks no more."""
        if entry_id not in self._ahead:
            self._ahead[entry_id] = self._asked(entry_id, custom)
        return self._ahead[entry_id]

    def _asked(self, entry_id: str, custom: Custom) -> UserMessage | None:
        projector = self.projectors.get(custom.type)
        if projector is None:
            return None
        try:
            shown = projector(deepcopy(custom.data))
            if shown is None or shown == "":
                return None
            return checked_user(user(shown) if isinstance(shown, str) else shown, "what it returned")
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # foreign code may raise anything, SystemExit included
            if entry_id not in self._told:
                self._told.add(entry_id)
                self._found(
                    f"entry {entry_id} is not shown to the model: the projector of {custom.type!r} failed: "
                    f"{error_text(error)}"
                )
            return None
