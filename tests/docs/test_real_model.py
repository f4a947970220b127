"""Claim: with a key or an address the demo asks a real model, and shows and checks what that did, whatever it did.

The provider is a server on loopback, which refuses each request that breaks the rules of its interface.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("anthropic")
pytest.importorskip("openai")

from agentlane import CallRecord
from tests.docs.pages import ROOT, environment
from tests.docs.providers import Provider, only_talks

DEMO = ROOT / "examples" / "crash_and_resume.py"
SECONDS_MAX = 240

SETTINGS = {
    "chat": ({"OPENAI_BASE_URL": "{url}/v1"}, ["--keep"], "openai-chat:local-1"),
    "responses": (
        {"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_KEY": "key", "AGENTLANE_MODEL": "script"},
        ["--model", "openai:gpt-x", "--store", "jsonl"],
        "openai:gpt-x",
    ),
    "anthropic": ({"ANTHROPIC_BASE_URL": "{url}"}, ["--store", "jsonl"], "anthropic:local-1"),
}
"""What is set, what is asked for, and the model that it leads to."""


def run(provider: Provider, settings: dict[str, str], *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    given = {name: value.format(url=provider.server.url) for name, value in settings.items()}
    return subprocess.run(
        [sys.executable, str(DEMO), *arguments],
        cwd=cwd,
        env=environment() | {"TMPDIR": str(cwd)} | given,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(DEMO.parent))
    return importlib.import_module("crash_and_resume")


@pytest.mark.parametrize("interface", SETTINGS)
def test_killed_at_the_first_call_that_changes_something_and_checked(
    interface: str, demo: ModuleType, tmp_path: Path, whole: bool
) -> None:
    if interface != "chat" and not whole:
        pytest.skip("two more processes that load an SDK: with --whole")
    settings, arguments, model = SETTINGS[interface]
    with Provider() as provider:
        done = run(provider, settings, *arguments, cwd=tmp_path)

    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert provider.breaches == []
    assert set(provider.models) == {model.partition(":")[2]}
    assert f"model   {model}: at most 12 requests" in done.stdout
    # The deletion of draft.txt is the first change, and may not be repeated.
    told = re.sub(r"\(\d+\)|-9 \d+|process \d+", "", done.stdout)
    assert "delete_file is half way, and held there" in told
    assert "kill" in told
    assert "delete_file(draft.txt)  started, no outcome, never      not run it: outcome unknown" in told
    assert "operation tidy-up-1 is completed" in told
    held = [line.removeprefix("  ok      ") for line in told.splitlines() if line.startswith("  ok  ")]
    assert (
        "a never call that was under way was not started again, and its result says that the outcome is unknown" in held
    )
    assert "no never call started twice" in held
    assert "each request to the model has one answer in the conversation and one row in the ledger" in held
    assert "Every claim holds." in told
    if interface == "chat":
        (folder,) = tmp_path.glob("agentlane-demo-*")
        assert f"kept: {folder}" in told
        broken_claims(demo, folder)
    else:
        assert not list(tmp_path.iterdir())


def broken_claims(demo: ModuleType, folder: Path) -> None:
    """The world is told otherwise, in a copy of the log: then the claim about it is broken, and no other."""
    place = demo.Place(folder, folder / "work.sqlite")
    log = [json.loads(line) for line in place.effects.read_text().splitlines()]
    first, second = log[0]["process"], log[-1]["process"]
    calls = at_the_kill(log, first)

    def broken(changed: list[dict[str, Any]]) -> list[str]:
        place.effects.write_text("".join(json.dumps(line) + "\n" for line in changed))
        return [
            claim.text for claim in asyncio.run(demo.check_any(place, first, second, calls)) if claim.holds is False
        ]

    assert broken(log) == []
    held = next(each for each in log if each["what"] == "delete_file")
    staged = next(call for call in calls if call.status == "outcome_ready")
    planned = next(call for call in calls if call.status == "planned" and call.policy == "safe")
    for told, claims in [
        (held, ["a never call that was under way", "no never call started twice"]),
        (start_of(log, staged.call_id), ["outcomes that the store held at the kill were kept"]),
        (start_of(log, planned.call_id), ["a call that had not started at the kill"]),
        ({"process": second, "what": "model", "event": "start"}, ["each request to the model has one answer"]),
        ({**held, "call": "unknown", "key": "k"}, ["no tool started of which the store has no result"]),
    ]:
        found = broken([*log, told | {"process": second}])
        assert len(found) == len(claims) and all(map(str.startswith, found, claims)), (found, claims)
    again = next((call for call in calls if call.status == "effect_pending" and call.policy != "never"), None)
    if again is not None:
        assert broken([*log, start_of(log, again.call_id) | {"key": "another"}])


def start_of(log: list[dict[str, Any]], call_id: str) -> dict[str, Any]:
    return next(each for each in log if each.get("call") == call_id and each["event"] == "start")


def at_the_kill(log: list[dict[str, Any]], first: int) -> list[CallRecord]:
    """What the store can have held at the kill, told by the log; of the first answer's call there is an outcome too."""
    policies = {"delete_file": "never", "delete_folder": "never", "write_file": "idempotent"}
    calls = {}
    for start in [each for each in log if each["event"] == "start" and "call" in each]:
        here = {each["process"] for each in log if each["event"] == "start" and each.get("call") == start["call"]}
        ended = {each["process"] for each in log if each["event"] == "end" and each["call"] == start["call"]}
        status = "planned" if first not in here else "outcome_ready" if here == ended == {first} else "effect_pending"
        policy = policies.get(start["what"], "safe")
        calls[start["call"]] = CallRecord(call_id=start["call"], tool=start["what"], status=status, policy=policy)
    return list(calls.values())


def test_a_key_that_is_refused_is_a_plain_message(tmp_path: Path) -> None:
    settings = {"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_KEY": "bad"}
    with Provider(refuses=True) as provider:
        done = run(provider, settings, cwd=tmp_path)

    assert done.returncode == 2
    assert done.stderr.splitlines()[1:] == [
        "There was no model to work with. authentication_failed: the provider answered 401: "
        "Incorrect API key provided: bad",
        "--model provider:name or AGENTLANE_MODEL chooses another, --model script needs none.",
    ]
    assert provider.breaches == []
    assert provider.keys == ["Bearer bad"], "it is not asked again"


def test_a_model_that_calls_no_tool_leaves_nothing_to_be_killed_in(tmp_path: Path, whole: bool) -> None:
    if not whole:
        pytest.skip("two more processes that load an SDK: with --whole")
    with Provider(only_talks) as provider:
        done = run(provider, {"OPENAI_BASE_URL": "{url}/v1"}, cwd=tmp_path)

    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert provider.breaches == []
    assert "the model asked for no call that changes something: there is nothing to be killed in" in done.stdout
    assert "kill -9" not in done.stdout
    assert [line[10:] for line in done.stdout.splitlines() if line.startswith("  ok  ")] == [
        "each request to the model has one answer in the conversation and one row in the ledger",
        "the operation has settled, and nothing is open",
    ]
    assert "could not show (it asked for no change, so nothing was killed):" in done.stdout
    assert done.stdout.count("  --  ") == 8
    assert len(provider.models) == 1


def test_what_is_set_leads_to_a_model(demo: ModuleType) -> None:
    models = sys.modules["_models"]
    with Provider(models=["text-embed", "small", "large"]) as several, Provider(models=["one"]) as single:
        local, only = f"{several.server.url}/v1", f"{single.server.url}/v1/"
        for wanted, environment, chosen in [
            (None, {}, "script"),
            ("a:b", {"AGENTLANE_MODEL": "c:d", "OPENAI_API_KEY": "k"}, "a:b"),
            (None, {"AGENTLANE_MODEL": "c:d", "OPENAI_API_KEY": "k"}, "c:d"),
            (None, {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"}, models.OPENAI),
            (None, {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "https://api.openai.com/v1"}, models.OPENAI),
            (None, {"OPENAI_BASE_URL": local}, "openai-chat:small"),
            (None, {"OPENAI_BASE_URL": only, "OPENAI_API_KEY": "k"}, "openai-chat:one"),
            (None, {"ANTHROPIC_API_KEY": "k"}, models.ANTHROPIC),
            (None, {"ANTHROPIC_AUTH_TOKEN": "k", "ANTHROPIC_BASE_URL": "https://gateway.invalid"}, models.ANTHROPIC),
            (None, {"ANTHROPIC_BASE_URL": several.server.url}, "anthropic:small"),
        ]:
            assert models.choose_model(wanted, environment) == chosen, environment

        with pytest.raises(models.NoModel, match="has 2 models, small, large ...; choose a model with --model"):
            models.choose_model(None, {"OPENAI_BASE_URL": local, "OPENAI_API_KEY": "k"})
        with pytest.raises(models.NoModel, match="does not list its models"):
            models.choose_model(None, {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"})
    with Provider(models=[]) as none, pytest.raises(models.NoModel, match="has no model; load one"):
        models.choose_model(None, {"OPENAI_BASE_URL": f"{none.server.url}/v1"})


@pytest.mark.parametrize(
    "address",
    [
        *("http://localhost:abc/v1", "http://a b/", "http://[::1/v1", "localhost:1/v1", "user:sekret-pass@localhost:1"),
        *("http://user:sekret-pass@127.0.0.1:9/v1", "http://user:sekret-pass@localhost:abc/v1"),
    ],
)
def test_an_address_that_is_none_is_a_plain_message_without_key_and_password(demo: ModuleType, address: str) -> None:
    models = sys.modules["_models"]
    for key in (None, "sk-sekret-key\n"):
        given = {"OPENAI_BASE_URL": address} | ({} if key is None else {"OPENAI_API_KEY": key})
        with pytest.raises(models.NoModel, match="does not list its models") as raised:
            models.choose_model(None, given)
        assert "sekret" not in str(raised.value) and raised.value.__suppress_context__


@pytest.mark.parametrize(
    "answer",
    [
        b"hello\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{}",
        b'HTTP/1.1 200 OK\r\n\r\n{"data": [{"id": 5}]}',
        b'HTTP/1.1 200 OK\r\n\r\n{"data": [{"id": null}]}',
        b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000,
    ],
    ids=["no HTTP", "cut", "a number", "null", "deep"],
)
def test_a_server_that_lists_nothing_that_can_be_read_is_a_plain_message(demo: ModuleType, answer: bytes) -> None:
    models = sys.modules["_models"]
    with answering(answer) as (url, _), pytest.raises(models.NoModel, match="does not list its models"):
        models.choose_model(None, {"OPENAI_BASE_URL": url})


def test_a_password_in_the_address_is_sent_and_not_printed(demo: ModuleType) -> None:
    models = sys.modules["_models"]
    with answering(b'HTTP/1.1 200 OK\r\n\r\n{"data": [{"id": "one"}]}') as (url, heard):
        address = url.replace("//", "//user:p%40ss@")
        assert models.choose_model(None, {"OPENAI_BASE_URL": address}) == "openai-chat:one"

    assert b"Basic " + b64encode(b"user:p@ss") in heard[0]


@contextmanager
def answering(answer: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """A server that gives this to one request, and what it was asked."""
    heard: list[bytes] = []

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            heard.append(connection.recv(65_536))
            connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", heard
        thread.join()


def test_a_mistyped_address_ends_the_demo_with_2(tmp_path: Path) -> None:
    with Provider() as provider:
        done = run(provider, {"OPENAI_BASE_URL": "http://user:sekret-pass@localhost:abc/v1"}, cwd=tmp_path)

    assert (done.returncode, "Traceback" in done.stderr, "sekret" in done.stdout + done.stderr) == (2, False, False)
    assert "There was no model to work with. the server does not list its models at" in done.stderr


def test_a_name_that_is_no_model_is_a_plain_message(tmp_path: Path) -> None:
    with Provider() as provider:
        done = run(provider, {"AGENTLANE_MODEL": "nobody:x"}, cwd=tmp_path)

    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert done.stderr.count("There was no model to work with. model='nobody:x': 'nobody' is not a provider") == 1


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_demo_installs_what_a_real_model_needs_and_else_nothing(tmp_path: Path) -> None:
    (tmp_path / ".ready").touch()

    def commands(*given: str, **settings: str) -> str:
        make = ["make", "-n", "-f", str(ROOT / "Makefile"), "-o", str(tmp_path / ".ready"), "demo", f"VENV={tmp_path}"]
        told = subprocess.run(
            [*make, *given], cwd=ROOT, env=environment() | settings, capture_output=True, text=True, check=True
        )
        return told.stdout

    assert "pip" not in commands()
    assert "pip" not in commands(OPENAI_API_KEY="")
    assert "pip" not in commands("ARGS=--model script", OPENAI_API_KEY="k")
    for name in ("AGENTLANE_MODEL", "OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"):
        installed = "--editable '.[anthropic,mcp,openai,pydantic-ai]'"
        assert installed in commands(**{name: "a $(value), and more"})
    assert "pip" in commands("ARGS=--model openai:gpt-x")
