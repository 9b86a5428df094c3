r"""Finds the answer in what a policy wrote: the last `\boxed{...}`, else "Answer: ...", else the last number.

Text before the last `</think>` is no answer, nor is anything while `<think>` is still open. A last box that
was never closed means the completion was cut inside its answer: there is none. All passes are linear.
"""

from __future__ import annotations

import re

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_ONLY_GROUP = re.compile(r"^\{([^{}]*)\}$")
_BARE_BOX = re.compile(r"[^\s{}$]+")
_PHRASE = re.compile(
    r"(?:####[ \t]*|\b(?:final[ \t]+)?answer\b[*_]*[ \t]*(?:is\b[ \t]*:?|are\b[ \t]*:?|[:=])[*_]*[ \t]*:?)",
    re.IGNORECASE,
)
_WORDS = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{2,}[,;]?[ ]+[A-Za-z]{2,}")
_WORD = re.compile(r"[A-Za-z]{2}")
_MATH = re.compile(r"\$\$?([^$\n]+)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]")
_SENTENCE_END = re.compile(r"(?<=[^\s.])\.(?:\s|$)|[;!?]|,\s+(?=[A-Za-z]{2})|\b(?:because|since|so|which)\b")
_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
_NUMBER = re.compile(
    rf"(?<![A-Za-z0-9.])[-\u2212+]?\s?(?:\\?\$\s?)?(?:{_DIGITS})(?:\s?/\s?[0-9]+|\s[0-9]+/[0-9]+)?(?:\s?\\?%)?"
)
_NOISE = " \t\r\n*_`"
_TAIL = 4000  # characters at the end in which an unboxed answer is looked for
_SHORT = 200  # a longer line is prose, not an answer


def extract_answer(response: str) -> str | None:
    r"""Returns the answer's text as it was written, or None where there is none.

    >>> extract_answer(r"First \boxed{3}. No, wait, \boxed{4}.")
    '4'
    >>> extract_answer("48 + 24 = 72 clips altogether in April and May.")
    '72'
    """
    text = after_thinking(response)
    if _BOX.search(text):
        return last_box(text)
    tail = text[-_TAIL:]
    if _PHRASE.search(tail):
        return answer_after_phrase(tail)
    line = tail.strip(_NOISE)
    if line and "\n" not in line and len(line) <= _SHORT and not _WORDS.search(line):
        return _tidy(line.removeprefix("=")) or None
    numbers = _NUMBER.findall(tail)
    return _tidy(numbers[-1]) if numbers else None


def after_thinking(response: str) -> str:
    """Returns what follows the last `</think>`; nothing while a `<think>` is open."""
    head, closed, rest = response.rpartition("</think>")
    text = rest if closed else head + rest
    return text.partition("<think>")[0]


def last_box(text: str) -> str | None:
    r"""Returns the content of the last `\boxed{...}` that is in no other box; None if it is not closed."""
    start = _BOX.search(text)
    if start is None:
        return None
    closing = _closing_braces(text, start.start())
    content: str | None = None
    inside_until = -1
    for box in _BOX.finditer(text):
        if box.start() < inside_until:
            continue
        if text[box.end() : box.end() + 1] == "{":
            end = closing.get(box.end())
            content = None if end is None else text[box.end() + 1 : end]
            inside_until = inside_until if end is None else end
        else:
            bare = _BARE_BOX.match(text, box.end())
            content = bare.group() if bare else None
    if content is None:
        return None
    return _ONLY_GROUP.sub(r"\1", _BOX.sub("", content).strip()) or None


def _closing_braces(text: str, start: int) -> dict[int, int]:
    """Returns where each brace that opens after `start` is closed."""
    closing: dict[int, int] = {}
    opened: list[int] = []
    for brace in _BRACE.finditer(text, start):
        if brace.group() == "{":
            opened.append(brace.start())
        elif brace.group() == "}" and opened:
            closing[opened.pop()] = brace.start()
    return closing


def answer_after_phrase(text: str) -> str | None:
    """Returns what follows the last "the answer is": the line, or the one formula or number of prose."""
    phrases = list(_PHRASE.finditer(text, max(0, len(text) - _TAIL)))
    if not phrases:
        return None
    lines = (line.strip(_NOISE) for line in text[phrases[-1].end() :].split("\n"))
    line = next((line for line in lines if line), "")
    if not line or len(line) > _SHORT or line.lower().startswith("not "):
        return None
    if not _WORDS.search(line) and not _WORD.search(_MATH.sub("", line) if _MATH.search(line) else ""):
        return _tidy(line) or None
    clause = _SENTENCE_END.split(line, maxsplit=1)[0].strip(_NOISE)
    formulas = [first or second or third for first, second, third in _MATH.findall(clause)]
    if formulas:
        return formulas[0].strip() if len(formulas) == 1 else None
    if clause and not _WORDS.search(clause):
        return _tidy(clause) or None
    numbers = _NUMBER.findall(clause)
    return _tidy(numbers[0]) if len(numbers) == 1 else None


def _tidy(text: str) -> str:
    text = text.strip(_NOISE)
    return text[:-1].rstrip(_NOISE) if text.endswith((".", ",", ";", "!")) else text
