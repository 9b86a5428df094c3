r"""Brings an answer to one spelling, so that equal answers are often equal strings.

Only spelling changes here, never meaning: `\dfrac12` becomes `\frac{1}{2}` and a minus sign of a word
processor becomes `-`, but nothing is evaluated, dropped or joined that a reader would tell apart ("1 2"
stays two numbers). Every pass is linear, except that unbraced arguments cost one look-up each.
"""

from __future__ import annotations

import re
from collections.abc import Callable

LONGEST = 10_000  # characters; a longer answer is only compared as it stands

_SUPERSCRIPTS = str.maketrans(
    "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b\u207f", "0123456789-n"
)
_SUBSCRIPTS = str.maketrans("\u2080\u2081\u2082\u2083\u2084\u2085\u2086\u2087\u2088\u2089", "0123456789")
_CHARACTERS: dict[int, str] = {
    **{ord(c): "-" for c in "\u2212\u2010\u2011\u2013\u2014\uff0d\ufe63"},
    **{ord(c): "" for c in "\u200b\u200c\u200d\u2060\ufeff\u00ad"},
    **{ord(c): " " for c in "\u00a0\u2002\u2003\u2009\u200a\u202f\u3000\t\n\r"},
    **dict.fromkeys([*range(9), 11, 12, *range(14, 32), 127], " "),
    **{0xFF10 + digit: str(digit) for digit in range(10)},
    **{
        ord(c): rf" \frac{{{n}}}{{{d}}} "
        for c, n, d in zip("\u00bd\u2153\u2154\u00bc\u00be", "11213", "23344", strict=True)
    },
    **{
        ord(c): rf" {latex} "
        for c, latex in {
            "\u00d7": r"\cdot", "\u00b7": r"\cdot", "\u22c5": r"\cdot", "\u2217": r"\cdot", "\u00f7": "/",
            "\u2044": "/", "\u2215": "/", "\u03c0": r"\pi", "\u221e": r"\infty", "\u2264": r"\le",
            "\u2265": r"\ge", "\u2260": r"\ne", "\u00b0": r"\degree", "\u222a": r"\cup", "\u2229": r"\cap",
            "\u2208": r"\in", "\u2205": r"\emptyset", "\u00b1": r"\pm", "\u2248": r"\approx",
            "\u221a": r"\sqrt", "\u03b8": r"\theta", "\u03b1": r"\alpha", "\u03b2": r"\beta",
            "\u211d": r"\mathbb{R}", "\u20ac": r"\euro",
            "\u00a3": r"\pounds", "\u2019": "'", "\u2032": "'", "\uff0c": ",", "\uff08": "(", "\uff09": ")",
        }.items()
    },
}  # fmt: skip

_SIZES = "left right big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr displaystyle textstyle limits"
_SPELLINGS = {
    **dict.fromkeys(["dfrac", "tfrac", "cfrac"], r"\frac"),
    **dict.fromkeys(["dbinom", "tbinom"], r"\binom"),
    **dict.fromkeys(["leq", "leqslant"], r"\le"),
    **dict.fromkeys(["geq", "geqslant"], r"\ge"),
    "lt": "<",
    "gt": ">",
    "neq": r"\ne",
    "div": "/",
    **dict.fromkeys(["times", "ast"], r"\cdot"),
    **dict.fromkeys(["varnothing", "empty"], r"\emptyset"),
    **dict.fromkeys(["lvert", "rvert", "vert", "mid"], "|"),
    **dict.fromkeys(["lbrace"], r"\{"),
    **dict.fromkeys(["rbrace"], r"\}"),
    "lbrack": "[",
    "rbrack": "]",
    **dict.fromkeys(["land", "wedge"], r"\text{ and }"),
    **dict.fromkeys(["lor", "vee"], r"\text{ or }"),
    "bigcup": r"\cup",
    "infin": r"\infty",
    "imath": "i",
    "colon": ":",
    "textdollar": r"\$",
    "percent": r"\%",
    **dict.fromkeys(["thickapprox", "simeq"], r"\approx"),
    **dict.fromkeys(_SIZES.split(), ""),
    **dict.fromkeys(["quad", "qquad", "enspace", "thinspace", "hfill"], " "),
}
_COMMAND = re.compile(r"\\([A-Za-z]+)\*?")
_SPACE_COMMAND = re.compile(r"\\[;:>]|(?<!\\)\\\s|~")
_THIN_SPACE = re.compile(r"\\[,!]")
_THOUSANDS_LATEX = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:(?:\\,|\{,\}|,?\\!|,\\,)[0-9]{3})+(?![0-9])")
_THOUSANDS_COMMA = re.compile(r"([-+]?)([^0-9,(\[{]*)([0-9]{1,3}(?:,[0-9]{3})+)((?:\.[0-9]+)?)([^0-9,]*)")
_FONT = re.compile(r"\\(mathrm|mathbf|mathit|mathsf|boldsymbol|bm|mathnormal|rm|operatorname)\s*\{([^{}]*)\}")
_TEXT = re.compile(r"\\(?:textbf|textit|textrm|textsf|textnormal|texttt|emph|mbox|hbox)(?=\s*\{)")
_DEGREE = re.compile(r"\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\})|\\degrees?(?![A-Za-z])")
_SUPER = re.compile(r"[\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207b\u207f]+")
_SUB = re.compile(r"[\u2080-\u2089]+")
_FUNCTION = re.compile(
    r"(?<![\\A-Za-z])(arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|ln|log|sqrt|pi|exp)(?![A-Za-z])"
)
_ROOT_PARENTHESES = re.compile(r"\\sqrt\s*\(([^()]*)\)")
_UNBRACED = re.compile(r"([\^_])\s*(\\[A-Za-z]+|[A-Za-z0-9])")
_SIGNED_POWER = re.compile(r"\^\s*-\s*([0-9]|[A-Za-z](?![A-Za-z]))")
_POWER_PARENTHESES = re.compile(r"\^\s*\(([^()]*)\)")
_SPACES = re.compile(r"\s+")
_IDLE_SPACE = re.compile(r"(?<![A-Za-z0-9]) | (?![A-Za-z0-9])")
_MATH_DELIMITERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
_MARKDOWN = ("**", "__", "`")


def clean(text: str) -> str:
    r"""Returns `text` in the one spelling.

    >>> clean(r"$\dfrac12\,$") == clean(r"\frac{1}{2}")
    True
    """
    text = _SUPER.sub(lambda m: "^{" + m.group().translate(_SUPERSCRIPTS) + "}", text)
    text = _SUB.sub(lambda m: "_{" + m.group().translate(_SUBSCRIPTS) + "}", text)
    text = _unwrap(text.translate(_CHARACTERS).strip())
    text = _THOUSANDS_LATEX.sub(lambda m: re.sub(r"[^0-9]", "", m.group()), text)
    text = _THIN_SPACE.sub(" ", text)
    text = _SPACE_COMMAND.sub(" ", text)
    text = _DEGREE.sub(r"\\degree ", text)
    text = _FONT.sub(_plain_font, _TEXT.sub(r"\\text", text))
    text = _COMMAND.sub(lambda m: _SPELLINGS.get(m.group(1), m.group()) + " ", text)
    text = _outside_text(text, _mathematics)
    text = _IDLE_SPACE.sub("", _SPACES.sub(" ", text)).strip()
    return _strip_parentheses(_strip_end(text))


def split_braced(text: str, start: int) -> int:
    """Returns the index after the brace group that opens at `start`, or -1 when it is not closed."""
    depth = 0
    for brace in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0 and brace.group() == "}":
            return brace.end()
    return -1


def _mathematics(text: str) -> str:
    text = _FUNCTION.sub(r"\\\1 ", text.replace("**", "^").replace("*", r"\cdot "))
    text = _ROOT_PARENTHESES.sub(r"\\sqrt{\1}", text)
    text = _POWER_PARENTHESES.sub(r"^{\1}", text)
    text = _SIGNED_POWER.sub(r"^{-\1}", text)
    return _brace_arguments(_UNBRACED.sub(r"\1{\2}", text))


def _outside_text(text: str, change: Callable[[str], str]) -> str:
    r"""Applies `change` to what is not in `\text{...}`."""
    parts: list[str] = []
    at = 0
    while (found := text.find(r"\text", at)) >= 0:
        opening = text.find("{", found)
        end = split_braced(text, opening) if opening >= 0 else -1
        if end < 0:
            break
        parts += [change(text[at:found]), text[found:end]]
        at = end
    return "".join([*parts, change(text[at:])])


def _unwrap(text: str) -> str:
    """Takes off dollar signs and brackets of mathematics, and the asterisks of Markdown."""
    changed = True
    while changed:
        changed = False
        for left, right in (*_MATH_DELIMITERS, *((mark, mark) for mark in _MARKDOWN)):
            inner = text[len(left) : -len(right)]
            if len(text) > len(left) + len(right) and text.startswith(left) and text.endswith(right):
                if left in inner or inner.endswith("\\"):
                    continue
                text, changed = inner.strip(), True
    comma = _THOUSANDS_COMMA.fullmatch(text)
    if comma:
        sign, before, digits, decimals, after = comma.groups()
        text = f"{sign}{before}{digits.replace(',', '')}{decimals}{after}"
    return text


def _plain_font(match: re.Match[str]) -> str:
    command, content = match.groups()
    if command != "operatorname" and (len(content.strip()) <= 1 or not content.strip().isalpha()):
        return f" {content} "
    return rf"\text{{{content}}}"


def _brace_arguments(text: str) -> str:
    r"""Puts braces around the arguments of `\frac`, `\binom` and `\sqrt`, from the last one to the first."""
    for match in reversed(list(re.compile(r"\\(frac|binom|sqrt)(?![A-Za-z])").finditer(text))):
        at = match.end()
        if match.group(1) == "sqrt" and text[at:].lstrip().startswith("["):
            at = text.find("]", at) + 1
        for _ in range(1 if match.group(1) == "sqrt" else 2):
            text, at = _brace_one(text, at)
            if at < 0:
                break
    return text


def _brace_one(text: str, at: int) -> tuple[str, int]:
    argument = re.compile(r"\s*(\{|\\[A-Za-z]+(?![A-Za-z{\[])|[A-Za-z0-9])").match(text, at)
    if argument is None:
        return text, -1
    if argument.group(1) == "{":
        return text, split_braced(text, argument.start(1))
    braced = f"{text[:at]}{{{argument.group(1)}}}"
    return braced + text[argument.end() :], len(braced)


def _strip_end(text: str) -> str:
    while text and (text[-1] in ",;" or (text[-1] == "." and text[-2:-1] != ".")):
        text = text[:-1].rstrip()
    return text


def _strip_parentheses(text: str) -> str:
    """Takes off brackets that hold all of `text` and are no tuple: ((x)) becomes x."""
    partner = _partners(text)
    first, last = 0, len(text)
    while first < last and text[first] in "({" and partner.get(first) == last - 1:
        first, last = first + 1, last - 1
    inner = text[first:last].strip()
    tuple_like = first and re.search(r",|\\text|^[A-J]$", inner, re.IGNORECASE)
    return text[first - 1 : last + 1] if tuple_like else inner


def _partners(text: str) -> dict[int, int]:
    """Returns the closing index of each `(` and `{`; of none after a pair that does not match."""
    partner: dict[int, int] = {}
    opened: list[int] = []
    for bracket in re.compile(r"\\.|[(){}]", re.DOTALL).finditer(text):
        kind = bracket.group()
        if kind in "({":
            opened.append(bracket.start())
        elif kind in ")}":
            if not opened or text[opened[-1]] + kind not in ("()", "{}"):
                return {}
            partner[opened.pop()] = bracket.start()
    return partner
