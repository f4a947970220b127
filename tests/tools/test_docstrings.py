"""Claim: what is said about a parameter is found in the three styles that people write."""

from __future__ import annotations

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlane.signatures.docstrings import read_docstring

GOOGLE = """Search the files.

    Looks everywhere.

    Args:
        query (str, optional): what to look for: words,
            in any order
        *limit: how many
        deep:
            whether to look into archives

        after: behind a gap

    Returns:
        query: not a parameter
    """
NUMPY = """Search the files.

    Looks everywhere.

    Parameters
    ----------
    query : str, optional
        what to look for: words,
        in any order
    limit, after : int
        how many
    deep
        whether to look

        into archives

    Returns
    -------
    query : str
        not a parameter
    """
REST = """Search the files.

    Looks everywhere.

    :param query: what to look for: words,
        in any order
    :type query: str
    :param int limit: how many
    :parameter dict[str, int] deep:
        whether to look into archives
    :returns: query
    :raises OSError: at times
    """
PLAIN = """Search the files.

    Note: this is text, and so is

        query: this

    Usage
    -----
    :Date: also this
    """


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        (
            GOOGLE,
            {
                "query": "what to look for: words, in any order",
                "limit": "how many",
                "deep": "whether to look into archives",
                "after": "behind a gap",
            },
        ),
        (
            NUMPY,
            {
                "query": "what to look for: words, in any order",
                "limit": "how many",
                "after": "how many",
                "deep": "whether to look into archives",
            },
        ),
        (
            REST,
            {
                "query": "what to look for: words, in any order",
                "limit": "how many",
                "deep": "whether to look into archives",
            },
        ),
    ],
    ids=["google", "numpy", "rest"],
)
def test_texts_of_parameters(text: str, texts: dict[str, str]) -> None:
    found = read_docstring(text)

    assert found.description == "Search the files.\n\nLooks everywhere."
    assert found.texts == texts


def test_text_that_is_no_section_is_the_description() -> None:
    assert read_docstring(PLAIN).description == inspect.cleandoc(PLAIN).strip()
    assert read_docstring(None) == ("", {})


@given(
    st.text(alphabet="ab: \n-()*,\t", max_size=60)
    | st.lists(st.sampled_from(["Args:", "  a: b", "Parameters", "---", "----", ":param a: b", "a : b", "", "x"])).map(
        "\n".join
    )
)
def test_any_text_can_be_read(text: str) -> None:
    found = read_docstring(text)

    assert all(name.isidentifier() or name.isalnum() for name in found.texts)
    assert all(text for text in found.texts.values())
