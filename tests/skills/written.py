"""Skills and templates written to a folder, as somebody would write them."""

from __future__ import annotations

from pathlib import Path

DESCRIPTION = "Work with PDF files. Use it when a PDF is mentioned."


def write_skill(
    root: Path, name: str = "pdf", body: str = "Open it.", *, head: str | None = None, **files: str
) -> Path:
    """A skill's folder; ``files`` has contents by name, with ``__`` for ``/``. ``head`` is all of its frontmatter."""
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    head = f"name: {name}\ndescription: {DESCRIPTION}" if head is None else head
    (folder / "SKILL.md").write_text(f"---\n{head}\n---\n{body}\n")
    for path, content in files.items():
        file = folder / path.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return folder


def write_template(root: Path, name: str, text: str) -> Path:
    """A template's file."""
    root.mkdir(parents=True, exist_ok=True)
    file = root / f"{name}.md"
    file.write_text(text)
    return file
