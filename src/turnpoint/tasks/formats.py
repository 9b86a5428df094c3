"""Row formats: which columns hold the prompt and the answer.

    plain      question or prompt, and answer            a prompt may be a list of messages
    gsm8k      question, answer                          the answer follows the last ####
    math       problem, and answer or solution           the answer is the last \\boxed of a solution
    deepmath   question, final_answer
    dapo       prompt, reward_model.ground_truth
    deepcoder, rstar, humaneval, mbpp: programs, see code_formats.py

Sources: the dataset cards of openai/gsm8k, the MATH dataset and MATH-500, zwhe99/DeepMath-103K and
BytedTsinghua-SIA/DAPO-Math-17k.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, cast

from turnpoint.errors import DataError
from turnpoint.tasks.code_formats import CODE_FORMATS
from turnpoint.tasks.row_format import InvalidRow, Problem, RowFormat, has, usable_text, whole_text
from turnpoint.tasks.rows import Columns
from turnpoint.types import Message


def recognise(rows: Iterable[Columns], source: str) -> RowFormat:
    """Returns the format of the first row that fits one.

    Raises DataError, naming the columns found and what each format needs, when a row fits several
    formats or no row fits any.
    """
    found: dict[str, bool] = {}  # column -> whether some row has something in it
    for columns in rows:
        found |= {name: found.get(name, False) or has(columns, name) for name in columns}
        fitting = [form for form in FORMATS.values() if form.fits(columns)]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            names = " and ".join(form.name for form in fitting)
            raise DataError(
                f"{source}: the columns {_names(columns)} fit {names}; set tasks.format to one of them"
            )
    needs = "; ".join(f"{form.name}: {form.needs}" for form in FORMATS.values())
    empty = [name for name, filled in found.items() if not filled]
    nothing = f" ({_names(empty)}: empty in every row)" if empty else ""
    raise DataError(
        f"{source}: the columns {_names(found)} fit no row format{nothing}; rename them to what one needs "
        f"({needs})"
    )


def _names(columns: Iterable[str]) -> str:
    return ", ".join(columns) or "(none)"


# --- the formats --------------------------------------------------------------------------------


def _plain(columns: Columns) -> Problem:
    prompts = [name for name in ("question", "prompt") if name in columns]
    if not prompts:
        raise InvalidRow("no column question or prompt")
    if len(prompts) > 1:
        raise InvalidRow("both question and prompt are there; keep one")
    return Problem(
        messages=_messages(columns, prompts[0]),
        answer=_answer(columns, "answer"),
        used=frozenset({prompts[0], "answer"}),
    )


def _gsm8k(columns: Columns) -> Problem:
    solution = _answer(columns, "answer")
    _, mark, answer = solution.rpartition("####")
    if not mark:
        raise InvalidRow("no #### in the answer")
    without_commas = re.sub(r"(?<=\d),(?=\d)", "", answer)
    return Problem(
        messages=_messages(columns, "question"),
        answer=usable_text(without_commas, "the answer after ####"),
        used=frozenset({"question"}),
    )


def _math(columns: Columns) -> Problem:
    if columns.get("answer") is not None:
        return Problem(
            messages=_messages(columns, "problem"),
            answer=_answer(columns, "answer"),
            used=frozenset({"problem", "answer"}),
        )
    boxed = last_boxed(_answer(columns, "solution"))
    if boxed is None:
        raise InvalidRow(r"no \boxed answer in the solution")
    return Problem(
        messages=_messages(columns, "problem"),
        answer=usable_text(boxed, "the boxed answer"),
        used=frozenset({"problem"}),
    )


def _deepmath(columns: Columns) -> Problem:
    return Problem(
        messages=_messages(columns, "question"),
        answer=_answer(columns, "final_answer"),
        used=frozenset({"question", "final_answer"}),
    )


def _dapo(columns: Columns) -> Problem:
    messages = _messages(columns, "prompt")
    reward_model = _value(columns, "reward_model")
    if not isinstance(reward_model, Mapping):
        raise InvalidRow(f"reward_model is {_kind(reward_model)}, not a mapping with ground_truth")
    return Problem(
        messages=messages,
        answer=_answer(cast(Columns, reward_model), "ground_truth"),
        used=frozenset({"prompt"}),
    )


def _fits_gsm8k(columns: Columns) -> bool:
    return has(columns, "question", "answer") and "####" in str(columns["answer"])


def _fits_plain(columns: Columns) -> bool:
    one_prompt = has(columns, "question") != has(columns, "prompt")
    return one_prompt and has(columns, "answer") and not _fits_gsm8k(columns)


def _fits_math(columns: Columns) -> bool:
    return has(columns, "problem") and (has(columns, "solution") or has(columns, "answer"))


FORMATS: dict[str, RowFormat] = {
    form.name: form
    for form in (
        RowFormat(name="plain", needs="question or prompt, and answer", fits=_fits_plain, read=_plain),
        RowFormat(name="gsm8k", needs="question, answer with ####", fits=_fits_gsm8k, read=_gsm8k),
        RowFormat(
            name="math", needs=r"problem, and answer or solution with \boxed", fits=_fits_math, read=_math
        ),
        RowFormat(
            name="deepmath",
            needs="question, final_answer",
            fits=lambda columns: has(columns, "question", "final_answer"),
            read=_deepmath,
        ),
        RowFormat(
            name="dapo",
            needs="prompt, reward_model with ground_truth",
            fits=lambda columns: has(columns, "prompt", "reward_model"),
            read=_dapo,
        ),
    )
} | dict(CODE_FORMATS)


# --- values -------------------------------------------------------------------------------------


def _value(columns: Columns, name: str) -> Any:
    if name not in columns:
        raise InvalidRow(f"no column {name}")
    if columns[name] is None:
        raise InvalidRow(f"{name} is null")
    return columns[name]


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"


def _answer(columns: Columns, name: str) -> str:
    """Returns the answer as text; numbers are written as people write them (7.0 as 7)."""
    value = _value(columns, name)
    if isinstance(value, str):
        return usable_text(value, name)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise InvalidRow(f"{name} is {_kind(value)}, neither text nor a number")
    if not math.isfinite(value):
        raise InvalidRow(f"{name} is no finite number")
    whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
    return str(int(value) if whole else value)


def _messages(columns: Columns, name: str) -> tuple[Message, ...]:
    value = _value(columns, name)
    if isinstance(value, str):
        return (Message(role="user", content=whole_text(value, name)),)
    if not isinstance(value, list):
        raise InvalidRow(f"{name} is {_kind(value)}, neither text nor a list of messages")
    return read_messages(columns, name)


def read_messages(columns: Columns, name: str, *, last: str = "user") -> tuple[Message, ...]:
    """Returns the list of messages in column `name`, the last one of role `last`; raises InvalidRow."""
    value = _value(columns, name)
    if not isinstance(value, list):
        raise InvalidRow(f"{name} is {_kind(value)}, not a list of messages")
    messages = tuple(_message(message, name) for message in cast("list[object]", value))
    if not messages:
        raise InvalidRow(f"{name} is empty")
    if messages[-1].role != last:
        raise InvalidRow(f"the last message of {name} is not from the {last}")
    return messages


def _message(value: object, name: str) -> Message:
    if not isinstance(value, Mapping):
        raise InvalidRow(f"a message of {name} is {_kind(value)}, not a mapping with role and content")
    fields = cast(Columns, value)
    role, content = fields.get("role"), fields.get("content")
    if role not in ("system", "user", "assistant"):
        raise InvalidRow(f"a message of {name} has a role other than system, user, assistant")
    if not isinstance(content, str):
        raise InvalidRow(f"a message of {name} has content that is {_kind(content)}, not text")
    return Message(role=role, content=whole_text(content, f"a message of {name}"))


def last_boxed(text: str) -> str | None:
    r"""Returns what the last `\boxed{...}` or `\fbox{...}` holds, braces balanced; None without one.

    >>> last_boxed(r"So \boxed{3}, no: $\boxed{\frac{1}{2}}$.")
    '\\frac{1}{2}'
    >>> last_boxed(r"hence $\boxed 7$")
    '7'
    """
    starts = list(re.finditer(r"\\(?:boxed|fbox)(?![A-Za-z])\s*", text))
    if not starts:
        return None
    rest = text[starts[-1].end() :]
    if not rest.startswith("{"):
        bare = re.match(r"[^\s$]+", rest)
        return bare[0] if bare else None
    depth = 0
    for token in re.finditer(r"\\.|[{}]", rest, re.DOTALL):  # an escaped brace opens and closes nothing
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if depth == 0 and token[0] == "}":
            return rest[1 : token.start()]
    return None
