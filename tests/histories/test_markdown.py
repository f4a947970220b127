"""Claim: an entry as Markdown says who, when and what; no text in it can end its fence, and each is there exactly."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlane import (
    AssistantMessage,
    Custom,
    Entry,
    ErrorInfo,
    ImagePart,
    ModelIdentity,
    ProviderPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultMessage,
    UserMessage,
)
from agentlane.histories.markdown import markdown_entry, markdown_title

AT = 1_763_681_581_544
"""2025-11-20 23:33:01 UTC."""

_OPEN = re.compile(r"^(`{3,})(\w*)$")


def entry(body: Any, at: int = AT) -> Entry:
    return Entry(id="e", parent_id=None, seq=1, at=at, body=body)


def fences(markdown: str) -> tuple[list[tuple[str, str]], list[str]]:
    """What stands in fences, with their languages, and the lines outside: read as CommonMark reads them."""
    found, outside = [], []
    lines = iter(markdown.split("\n"))
    for line in lines:
        opened = _OPEN.match(line)
        if opened is None:
            outside.append(line)
            continue
        inside: list[str] = []
        for line in lines:
            if re.fullmatch(rf" {{0,3}}`{{{len(opened[1])},}}\s*", line):
                break
            inside.append(line)
        else:
            raise AssertionError(f"a fence is not closed: {markdown!r}")
        found.append((opened[2], "\n".join(inside)))
    return found, outside


def test_a_conversation_as_it_reads() -> None:
    call = ToolCallPart(id="a", name="read", arguments={"path": "a.txt"})
    said = [
        entry(UserMessage(content=(TextPart(text="hi\n# no heading"), ImagePart(data="QUJD", mime_type="image/png")))),
        entry(
            AssistantMessage(
                content=(ThinkingPart(text="hm"), TextPart(text="I look."), call),
                stop_reason="tool_calls",
                model=ModelIdentity(provider="acme", name="large"),
                sent_at=0,
            )
        ),
        entry(ToolResultMessage(call_id="a", name="read", content=(TextPart(text="```\nx\n```"),), is_error=True)),
        entry(Custom(type="note", data={"by": "ada"})),
        entry(AssistantMessage(content=(), stop_reason="error", error=ErrorInfo(code="c", message="too\nbusy"))),
    ]

    assert markdown_title("main", "s") + "".join(map(markdown_entry, said)) == EXPECTED


EXPECTED = """# Branch `main` of session `s`

## User · 2025-11-20 23:33:01 UTC

```text
hi
# no heading
```

*An image: `image/png`, 3 bytes*

## Assistant · `acme:large` · 1970-01-01 00:00:00 UTC

<details><summary>Thinking</summary>

```text
hm
```

</details>

```text
I look.
```

**Call of** `read` `a`

```json
{
  "path": "a.txt"
}
```

### Error of `read` `a` · 2025-11-20 23:33:01 UTC

````text
```
x
```
````

## Entry `note` · 2025-11-20 23:33:01 UTC

<details><summary>Data</summary>

```json
{
  "by": "ada"
}
```

</details>

## Assistant · 2025-11-20 23:33:01 UTC

*Ended as error: `too busy`*
"""

TEXT = st.lists(
    st.sampled_from(["a", "`", "``", "```", "````\n", "\n", "\r", "~~~", "</details>", "# x", " ", "\x00", "é"]),
    max_size=8,
).map("".join)
NAME = st.lists(st.sampled_from(["a", "`", "``", "\n", " ", "<b>", "*"]), max_size=4).map("".join)
OBJECT = st.dictionaries(TEXT, TEXT | st.integers(), max_size=2)
USER_PART = st.builds(TextPart, text=TEXT)
ANSWER_PART = st.one_of(
    st.builds(TextPart, text=TEXT),
    st.builds(ThinkingPart, text=TEXT),
    st.builds(ToolCallPart, id=NAME, name=NAME, arguments=OBJECT),
    st.builds(ToolCallPart, id=NAME, name=NAME, arguments_text=TEXT),
    st.builds(ProviderPart, provider=NAME, data=OBJECT),
)
BODY: st.SearchStrategy[Any] = st.one_of(
    st.builds(UserMessage, content=st.lists(USER_PART, max_size=3).map(tuple)),
    st.builds(
        AssistantMessage,
        content=st.lists(ANSWER_PART, max_size=3).map(tuple),
        stop_reason=st.sampled_from(["stop", "length", "aborted"]),
        model=st.none() | st.builds(ModelIdentity, provider=NAME, name=NAME),
        error=st.none() | st.builds(ErrorInfo, code=st.just("c"), message=NAME),
    ),
    st.builds(
        ToolResultMessage, call_id=NAME, name=NAME, content=st.lists(USER_PART, max_size=2).map(tuple), details=OBJECT
    ),
    st.builds(Custom, type=st.just("note"), data=OBJECT),
)


@given(st.lists(BODY, max_size=4))
def test_every_text_is_in_a_fence_of_its_own_exactly_as_it_is(bodies: list[Any]) -> None:
    markdown = markdown_title("main", "s") + "".join(markdown_entry(entry(body)) for body in bodies)

    found, outside = fences(markdown)

    assert [(kind, text if kind == "text" else json.loads(text)) for kind, text in found] == [
        each for body in bodies for each in expected(body)
    ]
    headings = [line for line in outside if line.startswith("#")]
    assert len(headings) == 1 + len(bodies)
    opened = sum(line.startswith("<details>") for line in outside)
    assert opened == sum(line == "</details>" for line in outside)
    assert not any("<b>" in line for line in outside if line.startswith("<details>"))


def expected(body: Any) -> list[tuple[str, Any]]:
    if isinstance(body, Custom):
        return [("json", body.data)]
    found: list[tuple[str, Any]] = []
    for part in body.content:
        if isinstance(part, ToolCallPart):
            found.append(("text", part.arguments_text) if part.arguments is None else ("json", part.arguments))
        elif isinstance(part, ProviderPart):
            found.append(("json", part.data))
        else:
            found.append(("text", part.text))
    if isinstance(body, ToolResultMessage):
        found.append(("json", body.details))
    return found


@pytest.mark.parametrize(
    ("at", "shown"), [(0, "1970-01-01 00:00:00 UTC"), (999, "1970-01-01 00:00:00 UTC"), (2**53, f"{2**53} ms")]
)
def test_times_are_of_utc(at: int, shown: str) -> None:
    assert f"## User · {shown}\n" in markdown_entry(entry(UserMessage(content=()), at=at))
    assert f"## User · {shown}\n" in markdown_entry(entry(UserMessage(content=(), sent_at=at)))


def test_what_a_provider_keeps_to_itself_is_not_shown() -> None:
    secret = ThinkingPart(text="", signature="opaque", redacted=True)

    markdown = markdown_entry(entry(AssistantMessage(content=(secret,), stop_reason="stop")))

    assert "opaque" not in markdown and "*Thinking that the provider keeps to itself*" in markdown
