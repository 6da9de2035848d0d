r"""Answers in texts: the place that states them, the marks around them, and numbers with units.

The answer in a longer text is the content of the last `\boxed{…}`, the text after the last "Answer:" in upper or lower case,
or a last line "#### …", whichever comes last.  Without any of them, the answer is the whole text.  Marks around the answer
are ignored (`plain_answer`): Markdown and LaTeX emphasis, dollar signs, one full stop.

A quantity is a number with a unit, or without one.  The names of units are a fixed table, so that no other word is taken for
a unit; nothing is converted.  A dollar sign before a number is ignored, because it often marks mathematics.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from math import gcd
from typing import NamedTuple

MAX_ANSWER_CHARACTERS = 1000
"""Maximum length of an answer to a maths task; longer answers count as wrong, because parsing them takes too long."""
ANSWER = re.compile(r"(?ai)\banswer[*_`]*\s*:")
STATED = re.compile(r"(?aim)^[ \t>#*_`]*(?:(?:so|the|my|final|correct)[ \t]+)*answer[*_`]*[ \t]*:")
"""Pattern of "answer:" at the beginning of a line or right after a box.  In these places it is not part of a sentence,
so the text after it overrides the box before it."""
LAST_LINE = re.compile(r"\s*####\s*(\S.*)")
"""Pattern of the last line of a solution in GSM8K, which contains the answer."""
WRAPPED = re.compile(
    r"\\(?:text|textbf|textit|emph|mathrm|mathbf|boldsymbol)\{([^{}]*)\}|\$\$?([^$]*)\$\$?|\\[(\[]((?:(?!\\[()\[\]]).)*)\\[)\]]",
    re.DOTALL,
)
EMPHASIS = "`*_"
BOX = "\\boxed{"


def final_answer(text: str) -> str:
    """Return the answer in a text, without surrounding blanks."""
    last = LAST_LINE.fullmatch(text.rstrip().rpartition("\n")[2])
    if last is not None and BOX not in last[1] and not ANSWER.search(last[1]):
        return last[1]
    start = text.rfind(BOX)
    if start >= 0:
        end = _end_of_box(text, start)
        if end is not None and not STATED.search(text[end + 1 :]):
            return _stated(text[start + len(BOX) : end])
    return _stated(text)


def answer_of_solution(solution: str) -> tuple[str, str] | None:
    """Return the worked part of a solution and its answer, from a last line "#### …" or the last box; None without these.

    With a box the worked part is the whole solution.
    """
    work, _, line = solution.rstrip().rpartition("\n")
    if (last := LAST_LINE.fullmatch(line)) is not None:
        return work.rstrip(), last[1]
    start = solution.rfind(BOX)
    end = _end_of_box(solution, start) if start >= 0 else None
    return None if end is None else (solution, solution[start + len(BOX) : end].strip())


def _end_of_box(text: str, start: int) -> int | None:
    """Return the place of the brace that ends the box at `start`; None if no brace does."""
    depth = 0
    for place in range(start + len(BOX) - 1, len(text)):
        depth += (text[place] == "{") - (text[place] == "}")
        if depth == 0:
            return place
    return None


def _stated(text: str) -> str:
    """Return the text after the last "Answer:", or the whole text."""
    return ANSWER.split(text)[-1].strip()


def plain_answer(answer: str) -> str:
    r"""Return an answer without the marks around it: emphasis, dollar signs, `\text{…}`, and one full stop."""
    if len(answer) > MAX_ANSWER_CHARACTERS:
        return answer
    return list(forms_of(answer))[-1]


def forms_of(answer: str) -> Iterator[str]:
    """Yield an answer, then each form of it as marks are removed one kind at a time, until none is left."""
    stopped = False
    yield (form := answer.strip())
    while True:
        before = form
        for sign in EMPHASIS:
            form = form.strip(sign).strip()
            yield form
        if wrapped := WRAPPED.fullmatch(form):
            form = next(group for group in wrapped.groups() if group is not None).strip()
        elif not stopped and form.endswith(".") and not form.endswith(".."):
            stopped, form = True, form[:-1].rstrip()
        yield form
        if form == before:
            return


# ------------------------------------------------------------------------------------------------------------------------
# Numbers and units.


NUMBER = re.compile(
    r"[+-]?([0-9]{1,60}(\.[0-9]{1,60})?|\.[0-9]{1,60}|[1-9][0-9]{0,2}(,[0-9]{3}){1,19}(\.[0-9]{1,60})?)([eE][+-]?[0-9]{1,3})?"
    r"|[+-]?[0-9]{1,60}/[0-9]{1,60}"
)
"""Pattern of the numbers that are read: decimals and fractions, with a bounded number of digits.

A point is the decimal point. A comma may only separate thousands, because "1,5" may be a decimal, a list or a slip.
"""
MINUS = "\u2212"
"""The typographic minus sign, which is read as a hyphen."""
MAX_QUANTITY_CHARACTERS = 200

_FRACTION = re.compile(r"([+-]?)\\[dt]?frac\{([0-9]{1,60})\}\{([0-9]{1,60})\}")
_RATIO = re.compile(r"[+-]?(?:([0-9]{1,60})/([0-9]{1,60})|\\[dt]?frac\{([0-9]{1,60})\}\{([0-9]{1,60})\})")
_DOLLAR = re.compile(r"([+-]?)\\?\$[ ]?(?=[-+]?[0-9.])")
_WITH_UNIT = re.compile(rf"((?:{NUMBER.pattern})|{_FRACTION.pattern})(?:\s*(?![0-9.,/])(.+))", re.DOTALL)
_LATEX_SPACE = re.compile(r"~|\\[,;:! ]")
_LATEX_WRAP = re.compile(r"\\(?:text|textrm|mathrm|rm|operatorname)\s*\{([^{}]*)\}")
_UNIT_AT_END = re.compile(
    r"((?:\\(?:text|textrm|mathrm)\s*\{[^{}]{1,40}\}(?:\s*/\s*)?)+(?:\^\{?[23]\}?)?|\\?%|\^\{?\\circ\}?)\s*\Z"
)


class Quantity(NamedTuple):
    """Number with a unit.  unit: its short name in `UNITS`; empty for none, and for dollars."""

    value: Fraction
    unit: str = ""


_LENGTHS = {
    "km": "kilometer kilometers kilometre kilometres",
    "m": "meter meters metre metres",
    "dm": "decimeter decimeters decimetre decimetres",
    "cm": "centimeter centimeters centimetre centimetres",
    "mm": "millimeter millimeters millimetre millimetres",
    "mi": "mile miles",
    "yd": "yard yards",
    "ft": "foot feet",
    "in": "inch inches",
}
_OTHERS = {
    "%": "percent",
    "°": "degree degrees deg",
    "°C": "",
    "°F": "",
    "kg": "kilogram kilograms",
    "g": "gram grams",
    "mg": "milligram milligrams",
    "t": "ton tons tonne tonnes",
    "lb": "lbs pound pounds",
    "oz": "ounce ounces",
    "L": "l liter liters litre litres",
    "mL": "ml milliliter milliliters millilitre millilitres",
    "gal": "gallon gallons",
    "s": "sec second seconds",
    "min": "mins minute minutes",
    "h": "hr hrs hour hours",
    "day": "days",
    "week": "weeks",
    "month": "months",
    "year": "years",
    "¢": "cent cents",
    "€": "euro euros",
    "£": "",
    "N": "newton newtons",
    "J": "joule joules",
    "W": "watt watts",
    "V": "volt volts",
    "Hz": "hertz",
}


def _names() -> dict[str, str]:
    """Return the short name of each name of a unit."""
    found = {"dollar": "", "dollars": "", "mph": "mi/h", "km/hr": "km/h"}
    for short, others in (_LENGTHS | _OTHERS).items():
        found |= dict.fromkeys([short, *others.split()], short)
    for short, others in _LENGTHS.items():
        for name in (short, *others.split()):
            for power, words in (("2", ("square", "sq", "sq.")), ("3", ("cubic", "cu", "cu."))):
                found |= dict.fromkeys([f"{name}^{power}", *(f"{word} {name}" for word in words)], f"{short}^{power}")
    return found


UNITS = _names()
"""Short names of units, by all of their names.  Dollars have an empty one, as if they were no unit."""


def number_in(text: str) -> Fraction | None:
    """Parse a text as a number; return None if it is not a number or has too many digits (`NUMBER`)."""
    text = text.strip().replace(MINUS, "-")
    if latex := _FRACTION.fullmatch(text):
        text = f"{latex[1]}{latex[2]}/{latex[3]}"
    if not NUMBER.fullmatch(text):
        return None
    try:
        return Fraction(text.replace(",", ""))
    except ZeroDivisionError:
        return None


def quantity_in(text: str) -> Quantity | None:
    """Parse a text as a number, with a dollar sign before it or a unit after it; return None for any other text."""
    if len(text) > MAX_QUANTITY_CHARACTERS:
        return None
    text = text.strip().replace(MINUS, "-")
    if dollar := _DOLLAR.match(text):
        rest = text[dollar.end() :]
        value = None if dollar[1] and rest[0] in "+-" else number_in(dollar[1] + rest)
        return None if value is None else Quantity(value)
    if (value := number_in(text)) is not None:
        return Quantity(value)
    parts = _WITH_UNIT.fullmatch(text)
    if parts is None:
        return None
    value, unit = number_in(parts[1]), unit_in(parts.groups()[-1])
    return None if value is None or unit is None else Quantity(value, unit)


def unit_in(text: str) -> str | None:
    """Return the short name of the unit that a text consists of, plain or in LaTeX; None if it is not a known unit."""
    text = _LATEX_WRAP.sub(r" \1 ", _LATEX_SPACE.sub(" ", text[:MAX_QUANTITY_CHARACTERS]))
    for sign, plain in (("\\%", "%"), ("^{\\circ}", "°"), ("^\\circ", "°"), ("²", "^2"), ("³", "^3"), ("\\$", "")):
        text = text.replace(sign, plain)
    text = re.sub(r"\s*\^\s*\{?([23])\}?", r"^\1", " ".join(text.split()))
    text = re.sub(r"°\s+(?=[CF]\Z)", "°", text)
    units = [_known(part.strip()) for part in re.split(r"/|\bper\b", text)]
    if None in units or len(units) > 2:
        return None
    return "/".join(unit or "$" for unit in units if unit is not None) if len(units) == 2 else units[0]


def _known(name: str) -> str | None:
    """Return the short name of a unit; capitals count only in short names, where m is not M."""
    found = UNITS.get(name)
    return UNITS.get(name.lower()) if found is None and len(name) > 3 else found


def unit_at_end(text: str) -> str:
    """Return the short name of the unit, in LaTeX, that ends a formula; empty for none."""
    found = _UNIT_AT_END.search(text[-MAX_QUANTITY_CHARACTERS:])
    return (unit_in(found[1]) or "") if found is not None else ""


# ------------------------------------------------------------------------------------------------------------------------
# Answers that a comparison of formulas would take although they leave the work to the reader.


_ARROW = re.compile(r"\\(?:to|(?:long|Long)?(?:left)?[rR]ightarrow|implies|iff)\b|[=-]>|[→⇒⟹]")
_WORD, _SIGN = re.compile(r"[A-Za-z]{4}"), re.compile(r"[0-9\\=^_{}+*/<>|]")
_OPERATION = re.compile(
    r"[+*!×·∗÷⋅]|\^(?!\s*\{?\s*\\circ)|(?<=[0-9A-Za-z)}\]])\s*-|[0-9)}]\s*\(|[0-9]\s+[0-9]"
    r"|\\(?:cdot|times|ast|div|pm|sum|prod|int|[dt]?binom|log|ln|sqrt|gcd|lcm|sin|cos|tan|lfloor|lceil)(?![A-Za-z])"
)


def is_words(text: str) -> bool:
    """Return True for an answer in words, which a comparison of formulas would take for products of letters."""
    return _WORD.search(text) is not None and _SIGN.search(text) is None


def is_evasive(right: str, said: str) -> bool:
    """Return True for an answer that is a chain of statements, or a sum that is left to do where a number is right.

    Comparisons of formulas take the end of a chain such as "4 = 5", and "17*23" for 391, which may be the question itself.
    """
    if _ARROW.search(said) and not _ARROW.search(right):
        return True
    left, equals, _ = said.partition("=")
    if equals and "=" not in right and (said.count("=") > 1 or not re.search("[A-Za-z]", left)):
        return True
    return number_in(plain_answer(right)) is not None and (_OPERATION.search(said) is not None or is_unreduced(said))


def is_unreduced(text: str) -> bool:
    """Return True for a fraction that is not in lowest terms, such as "84/4", which may be the question itself."""
    found = _RATIO.fullmatch(text.strip().replace(MINUS, "-"))
    if found is None:
        return False
    above, below = (int(part) for part in found.groups() if part is not None)
    return below == 1 or gcd(above, below) > 1
