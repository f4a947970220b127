"""Prints how far the token estimate is off: ``python -m benchmarks.token_estimate [--session FILE]``.

Each figure is what the estimate says, divided by what a tokenizer counts: above 1 is too many. The tokenizers are those
of the packages ``tiktoken`` and ``tokenizers``, with the vocabularies that ``litellm`` and ``dashscope`` ship; what is
not installed is left out, with a word. With a recorded session (also ``AGENTLANE_RECORDED_SESSION``), its texts are
measured by kind, and the estimate of what came between two requests against what the provider counted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import uuid
from base64 import b64decode, b64encode, encodebytes
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import quantiles
from time import perf_counter
from typing import Any

import msgspec

from agentlane import read_history
from agentlane.data.messages import AssistantMessage, Message, TextPart, ThinkingPart, ToolCallPart, ToolResultMessage
from agentlane.data.tokens import estimate_message, estimate_text

Counting = dict[str, Callable[[str], int]]

SENTENCES = {
    "English": "The file was not found; try again with another name, or ask somebody who knows where it is kept.",
    "German": "Die Datei wurde nicht gefunden; versuche es mit einem anderen Namen oder frage jemanden, der sie kennt.",
    "French": "Le fichier n'a pas été trouvé ; essayez un autre nom ou demandez à quelqu'un où il est conservé.",
    "Spanish": "No se encontró el archivo; inténtalo con otro nombre o pregunta a alguien que sepa dónde está.",
    "Italian": "Il file non è stato trovato; riprova con un altro nome o chiedi a qualcuno dove viene conservato.",
    "Polish": "Nie znaleziono pliku; spróbuj podać inną nazwę albo zapytaj kogoś, kto wie, gdzie jest przechowywany.",
    "Turkish": "Dosya bulunamadı; başka bir adla yeniden deneyin ya da nerede saklandığını bilen birine sorun.",
    "Finnish": "Tiedostoa ei löytynyt; yritä uudelleen toisella nimellä tai kysy joltakulta, missä sitä säilytetään.",
    "Indonesian": "Berkas tidak ditemukan; coba lagi dengan nama lain atau tanyakan kepada orang yang tahu tempatnya.",
    "Swahili": "Faili haikupatikana; jaribu tena kwa jina lingine au muulize mtu anayejua mahali inapohifadhiwa.",
    "Vietnamese": "Không tìm thấy tệp; hãy thử lại với tên khác hoặc hỏi người biết nó được lưu ở đâu.",
    "Russian": "Файл не найден; попробуйте другое имя или спросите того, кто знает, где он хранится.",
    "Greek": "Το αρχείο δεν βρέθηκε· δοκιμάστε άλλο όνομα ή ρωτήστε κάποιον που ξέρει πού φυλάσσεται.",
    "Hebrew": "הקובץ לא נמצא; נסו שם אחר או שאלו מישהו שיודע היכן הוא נשמר.",
    "Arabic": "لم يتم العثور على الملف؛ حاول مرة أخرى باسم آخر أو اسأل من يعرف مكان حفظه.",
    "Hindi": "फ़ाइल नहीं मिली; किसी दूसरे नाम से फिर कोशिश करें या किसी जानकार से पूछें।",
    "Thai": "ไม่พบไฟล์ ลองใหม่ด้วยชื่ออื่น หรือถามคนที่รู้ว่าเก็บไว้ที่ไหน",
    "Japanese": "ファイルが見つかりませんでした。別の名前でもう一度試すか、保管場所を知っている人に聞いてください。",
    "Korean": "파일을 찾을 수 없습니다. 다른 이름으로 다시 시도하거나 보관 장소를 아는 사람에게 물어보세요.",
    "Chinese": "找不到该文件；请换一个名称再试一次，或者询问知道它保存在哪里的人。",
}


def main() -> None:
    """Measure what is there, and say what is not."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.token_estimate", description=__doc__)
    parser.add_argument("--session", metavar="FILE", default=os.environ.get("AGENTLANE_RECORDED_SESSION"))
    options = parser.parse_args()
    tokenizers = installed()
    print_ratios("texts made up here", texts(), tokenizers)
    if options.session:
        said = conversation(Path(options.session))
        print_ratios("the session's texts", by_kind(said), tokenizers)
        print_against_the_provider(said)
    else:
        print("\nno recorded session is named; nothing is measured against a provider")
    print_times()


def print_ratios(title: str, texts: dict[str, str], tokenizers: Counting) -> None:
    print(f"\n{title:24}{'bytes':>8}{'estimate':>10}" + "".join(f"{name:>12}" for name in tokenizers))
    for kind, text in texts.items():
        estimate = estimate_text(text)
        ratios = "".join(f"{estimate / max(1, count(text)):12.2f}" for count in tokenizers.values())
        print(f"{kind:24}{len(text.encode()):8}{estimate:10}{ratios}")


def print_against_the_provider(said: Sequence[Message]) -> None:
    """Of each request the part that no earlier one had: what was estimated of it, divided by what was counted."""
    estimated, counted = [], []
    for estimate, count in increments(said):
        estimated.append(estimate)
        counted.append(count)
    parts = quantiles([one / other for one, other in zip(estimated, counted, strict=True)], n=20)
    print(f"\nwhat came between {len(counted)} requests, against the provider's own counts")
    print(f"together {sum(estimated) / sum(counted):.2f}; one by one, from the 5th percentile: ", end="")
    print(f"{parts[0]:.2f}, {parts[4]:.2f}, {parts[9]:.2f}, {parts[14]:.2f}, {parts[18]:.2f} (5, 25, 50, 75, 95)")


def print_times() -> None:
    print("\n300,000 characters of    ms")
    for kind, text in texts().items():
        if kind in ("English", "Python", "base64", "Japanese"):
            whole = (text * (300_000 // len(text) + 1))[:300_000]
            taken = []
            for _ in range(20):
                began = perf_counter()
                estimate_text(whole)
                taken.append(perf_counter() - began)
            print(f"{kind:20}{min(taken) * 1e3:8.2f}")


def increments(said: Sequence[Message]) -> Iterator[tuple[int, int]]:
    """By request: the estimate of the messages that came since the one before, and by how much its input grew."""
    before, estimate = None, 0
    for message in said:
        if isinstance(message, AssistantMessage):
            if message.stop_reason in ("error", "aborted"):
                continue
            counted = None if message.usage is None else message.usage.input_tokens
            if counted:
                if before is not None and counted > before:
                    yield estimate, counted - before
                before, estimate = counted, 0
        estimate += estimate_message(message)


def conversation(path: Path) -> list[Message]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    return [each for each in read_history(rows, format="recorded").bodies if isinstance(each, Message)]


def by_kind(said: Sequence[Message]) -> dict[str, str]:
    """All texts of a kind, one behind the other."""
    found: dict[str, list[str]] = {}
    for message in said:
        for part in message.content:
            match message, part:
                case AssistantMessage(), TextPart(text=text):
                    found.setdefault("answers", []).append(text)
                case ToolResultMessage(), TextPart(text=text):
                    found.setdefault("results", []).append(text)
                case _, TextPart(text=text):
                    found.setdefault("users", []).append(text)
                case _, ThinkingPart(text=text):
                    found.setdefault("thinking", []).append(text)
                case _, ToolCallPart(name=name, arguments=arguments):
                    found.setdefault("calls", []).append(name + msgspec.json.encode(arguments).decode())
                case _:
                    pass
    return {kind: "\n".join(texts) for kind, texts in found.items()}


def texts() -> dict[str, str]:
    """Texts of many kinds, the same each time."""
    draw = random.Random(1)
    rows = [
        {"id": str(uuid.UUID(int=draw.getrandbits(128))), "name": f"item {number}", "value": draw.random(), "ok": True}
        for number in range(200)
    ]
    data = draw.randbytes(20_000)
    letters = "abcdefghijklmnopqrstuvwxyz"
    source = Path(argparse.__file__).read_text()
    return {
        **SENTENCES,
        "Python": source,
        "Markdown": "".join(page.read_text() for page in sorted(Path(__file__).parents[1].glob("docs/*/*.md"))),
        "JSON": json.dumps(rows),
        "JSON, indented": json.dumps(rows, indent=2),
        "log": "\n".join(
            f"2025-11-20 23:{n % 60:02}:07 [INFO] worker-{n % 9}: done in {n / 7:.2f} ms" for n in range(500)
        ),
        "base64": b64encode(data).decode(),
        "base64, in lines": encodebytes(data).decode(),
        "hexadecimal": data.hex(),
        "whole numbers": " ".join(str(draw.randrange(10 ** draw.randrange(1, 9))) for _ in range(2_000)),
        "fractions": ", ".join(repr(draw.random()) for _ in range(1_000)),
        "spaces": " " * 10_000,
        "columns": "".join(f"name{' ' * draw.randrange(2, 40)}{draw.randrange(99)}\n" for _ in range(500)),
        "la la la": "la " * 10_000,
        "emoji": "".join(draw.choice("😀🎉🚀🔥👍🤖📦🧪💡🐛") for _ in range(1_000)),
        "boxes and arrows": "│ ├── └── ─────── ║ ═══ → ← ≤ ≥ • … " * 200,
        "rare characters": "".join(chr(draw.randrange(0x4E00, 0x9FFF)) for _ in range(1_000)),
        "letters in no order": "".join(draw.choice(letters) for _ in range(10_000)),
    }


def installed() -> Counting:
    """The tokenizers that are installed with a vocabulary."""
    found: Counting = {}
    shipped = package_folder("litellm", "litellm_core_utils/tokenizers")
    if find_spec("tiktoken") is None:
        print("tiktoken is not installed: no cl100k_base, o200k_base, qwen")
    else:
        import tiktoken

        if shipped is None:
            print("litellm is not installed: no cl100k_base, o200k_base")
        else:
            os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(shipped))
            for name in ("cl100k_base", "o200k_base"):
                found[name.removesuffix("_base")] = counting(tiktoken.get_encoding(name).encode_ordinary)
        words = package_folder("dashscope", "resources")
        if words is None:
            print("dashscope is not installed: no qwen")
        else:
            lines = (line.split() for line in (words / "qwen.tiktoken").read_bytes().splitlines() if line)
            ranks = {b64decode(token): int(rank) for token, rank in lines}
            encoding = tiktoken.Encoding("qwen", pat_str=QWEN, mergeable_ranks=ranks, special_tokens={})
            found["qwen"] = counting(encoding.encode_ordinary)
    if shipped is None or find_spec("tokenizers") is None:
        print("tokenizers or litellm is not installed: no claude (of 2023), deepseek")
    else:
        from tokenizers import Tokenizer

        for name, file in (("claude 2023", "anthropic"), ("deepseek", "deepseek")):
            found[name] = counting_ids(Tokenizer.from_file(str(shipped / f"{file}_tokenizer.json")))
    return found


QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How that vocabulary's texts are divided first."""


def counting(encode: Callable[[str], Sequence[int]]) -> Callable[[str], int]:
    return lambda text: len(encode(text))


def counting_ids(tokenizer: Any) -> Callable[[str], int]:
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def package_folder(package: str, folder: str) -> Path | None:
    spec = find_spec(package)
    place = None if spec is None or spec.origin is None else Path(spec.origin).parent / folder
    return place if place is not None and place.is_dir() else None


if __name__ == "__main__":
    main()
