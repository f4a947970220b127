"""Which model the demo asks: one that is named, or that the environment tells of, or a script; requests are logged."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import URLError
from urllib.parse import unquote
from urllib.request import Request, urlopen

from _folder_tools import Desk

from agentlane import Model, ModelIdentity, ModelLimits, ModelRequest, StreamItem
from agentlane.models.names import model_named
from agentlane.testing import ScriptedModel, call, say

OPENAI = "openai:gpt-5.6-luna"
ANTHROPIC = "anthropic:claude-haiku-5-5"
SCRIPT = "script"
LIST_WAIT_S_MAX = 10.0

NOTES = "# Notes\n\nWork is accepted by `AgentLane.accept` in lane.py; driver/verbs.py does it.\n"
ANSWERS = (
    [say("I look around first."), call("list_files", path=".")],
    [
        say("Now everything at once."),
        call("search", text="def accept"),
        call("read_file", path="ids.py"),
        call("delete_file", path="draft.txt"),
        call("write_file", path="NOTES.md", text=NOTES),
        call("delete_folder", path="build"),
        call("read_file", path="errors.py"),
    ],
    [say("The deletion was interrupted, so I check before anything else."), call("list_files", path="build")],
    "NOTES.md is written and draft.txt is gone. build is only half deleted: shall I delete the rest?",
)


class NoModel(Exception):
    """There is no model to ask, and the message says what to do."""


def choose_model(wanted: str | None, environment: Mapping[str, str]) -> str:
    """The name of the model to ask: the one that is wanted, or what the keys and addresses that are set lead to.

    A server at an address of one's own is asked for the models that it has. Without anything it is the script.
    """
    named = wanted or environment.get("AGENTLANE_MODEL")
    if named:
        return named
    key, address = environment.get("OPENAI_API_KEY"), environment.get("OPENAI_BASE_URL")
    if address and "api.openai.com" not in address:
        return f"openai-chat:{served(address, key)}"
    if key:
        return OPENAI
    key = environment.get("ANTHROPIC_API_KEY") or environment.get("ANTHROPIC_AUTH_TOKEN")
    address = environment.get("ANTHROPIC_BASE_URL")
    if address and not key:
        return f"anthropic:{served(address.rstrip('/') + '/v1', key)}"
    return ANTHROPIC if key else SCRIPT


def served(address: str, key: str | None) -> str:
    """The model that a server has: the only one, or, where no key is needed, the first that it lists."""
    choose = "choose a model with --model provider:name, or with AGENTLANE_MODEL"
    address, who = without_password(address.strip())
    url = f"{address.rstrip('/')}/models"
    headers = {"authorization": f"Bearer {key}"} if key else {}
    if who and not key:
        headers = {"authorization": f"Basic {b64encode(unquote(who).encode()).decode()}"}
    try:
        with urlopen(Request(url, headers=headers), timeout=LIST_WAIT_S_MAX) as it:
            listed = [each["id"] for each in json.load(it)["data"]]
        if not all(isinstance(name, str) for name in listed):
            raise ValueError("what it lists has no names")
    except (OSError, URLError, HTTPException, RecursionError, ValueError, KeyError, TypeError) as error:
        told = str(error)
        for secret in (*(key or "").split(), who):
            told = told.replace(secret, "***") if secret else told
        raise NoModel(f"the server does not list its models at {url} ({told}); {choose}") from None
    names = [name for name in listed if "embed" not in name] or listed
    if not names:
        raise NoModel(f"the server at {address} has no model; load one, or {choose}")
    if key and len(names) > 1:
        raise NoModel(f"the server at {address} has {len(names)} models, {', '.join(names[:5])} ...; {choose}")
    return names[0]


def without_password(address: str) -> tuple[str, str]:
    """The address without the user and the password in it, and these, which are not to be printed."""
    scheme, slashes, rest = address.rpartition("://")
    who, at, place = rest.rpartition("@")
    return f"{scheme}{slashes}{place}", who if at else ""


def key_for(name: str, environment: Mapping[str, str]) -> dict[str, str]:
    """What the environment lacks for a server that needs no key: Anthropic's SDK asks nobody without one."""
    given = environment.get("ANTHROPIC_API_KEY") or environment.get("ANTHROPIC_AUTH_TOKEN")
    wanted = name.startswith("anthropic:") and environment.get("ANTHROPIC_BASE_URL") and not given
    return {"ANTHROPIC_API_KEY": "none"} if wanted else {}


def make_model(desk: Desk, name: str) -> Model:
    """The model of that name, or the script; the desk's log has each request to it.

    Raises ``InvalidDefinition`` for a name that is not known, and where the extra for it is not installed.
    """
    return LoggedModel(ScriptedModel(ANSWERS) if name == SCRIPT else model_named(name), desk)


class LoggedModel:
    """A model; each request to it is written to the log of effects, as a provider would write it to its bill."""

    def __init__(self, model: Any, desk: Desk) -> None:
        self._model = model
        self._desk = desk

    @property
    def identity(self) -> ModelIdentity:
        return self._model.identity

    @property
    def limits(self) -> ModelLimits:
        return self._model.limits

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        again = f", attempt {request.attempt}" if request.attempt > 1 else ""
        print(f"  model  is asked, and shown {len(request.messages)} messages{again}", flush=True)
        self._desk.note("model", "start", messages=len(request.messages))
        return self._model.stream(request)
