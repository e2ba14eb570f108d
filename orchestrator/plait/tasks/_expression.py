r"""Canonical forms of mathematical expressions: equal for equal expressions (`2(x+1)`, `2x+2`, `\frac{4x+4}{2}`).

A parser evaluates the expression at fixed pseudo-random points of a finite field. Two different rational functions
agree there with a probability of about degree / 2^128 (Schwartz 1980, Zippel 1979). The form is therefore pure and
fast, and the length of the text bounds its time, while a computer algebra system can hang. No text is executed. Not
covered: identities of functions (sin^2 + cos^2), roots of expressions with variables, rounding.
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
from dataclasses import dataclass
from fractions import Fraction

_P = 314159265358979323846264338327950288459
"""A prime without structure (digits of pi) that is 3 modulo 4: with a root of -1, every integer has a root."""
_MAX_RAW, _MAX_CHARS = 4_000, 400
"""Characters before and after commands are put into plain signs."""
_MAX_DEPTH = 40
_MAX_POWER = 1000
_MAX_BITS = 2048
_MAX_ROOT = 10**10
_SYMBOLS = (
    ("\\left", ""), ("\\right", ""), ("\\!", ""), ("\\,", ""), ("\\;", ""), ("\\:", ""), ("\\ ", " "), ("$", ""),
    ("\\cdot", "*"), ("\\times", "*"), ("\\div", "/"), ("×", "*"), ("·", "*"), ("÷", "/"), ("−", "-"), ("**", "^"),
    ("\\dfrac", "\\frac"), ("\\tfrac", "\\frac"), ("π", "\\pi"), ("√", "\\sqrt"), ("\\{", "<"), ("\\}", ">"),
)  # fmt: skip
_TOKEN = re.compile(r"\s*(?:(\d{1,60}(?:\.\d{1,60})?|\.\d{1,60})|\\([a-zA-Z]{1,20})|([a-zA-Z]+)|(.))", re.DOTALL)
_MIXED = re.compile(r"(?<![\w.^}\\])(\d{1,60}) ?(\\frac(?: ?\{\d{1,60}\} ?\{\d{1,60}\}|\d\d))(?![\d^])")
_GROUPED = re.compile(r"(?<![\d.])\d{1,3}(?:,\d{3})+(?![\d,])")
_FUNCTIONS = frozenset(["sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "exp", "arcsin", "arccos", "arctan"])
_GREEK = frozenset(
    ["alpha", "beta", "gamma", "delta", "epsilon", "theta", "lambda", "mu", "nu", "xi", "pi", "rho", "sigma", "tau",
     "phi", "chi", "psi", "omega", "infty"]
)  # fmt: skip


class _Unreadable(Exception):
    """The text is no expression that is read here."""


Point = tuple[int, int]
"""a + b·i modulo the prime."""


@dataclass(frozen=True, slots=True)
class _Value:
    """An expression's value at the point, and its exact value if it is a rational number."""

    at: Point
    exact: Fraction | None = None


def canonical(text: str) -> str | None:
    """Return the canonical form of an expression, a tuple `(a, b)`, an interval or a set `{a, b}`, or `None` for
    anything else. A rational number is written as a fraction (`1/2`), any other value as a fingerprint (`~…`)."""
    if len(text) > _MAX_RAW:
        return None
    for raw, plain in _SYMBOLS:
        text = text.replace(raw, plain)
    text = text.strip()
    if not text.startswith(("(", "[", "<")):  # `(5,100)` is a point
        text = _GROUPED.sub(lambda grouped: grouped[0].replace(",", ""), text)
    text = _MIXED.sub(r"(\1+\2)", text)  # `1\frac{1}{2}` is three halves, not one half
    if not text or len(text) > _MAX_CHARS:
        return None
    try:
        return _list(text)
    except (_Unreadable, ArithmeticError, ValueError, RecursionError):
        return None


def _list(text: str) -> str:
    """Return the form of a comma-separated list in its brackets. The items of a set, or of a list without brackets, are
    sorted."""
    left, right, inside = "", "", text
    if text[0] in "([<" and text[-1] in ")]>" and len(_split(text[1:-1])) > 1 and _closes_at_end(text):
        left, right, inside = text[0], text[-1], text[1:-1]
    parts = _split(inside)
    if len(parts) == 1:
        return _alone(inside)
    forms = [_alone(part) for part in parts]
    return left + ",".join(forms if left in ("(", "[") else sorted(forms)) + right


def _alone(text: str) -> str:
    head, equals, tail = text.rpartition("=")
    if equals and re.fullmatch(r"\s*[a-zA-Z]\s*", head):  # `x = 5` says 5
        text = tail
    value = _Parser(text).whole()
    # A number has one plain form; other values are compared by fingerprint.
    if value.exact is not None:
        return str(value.exact)
    return f"~{value.at[0]:x}.{value.at[1]:x}"


def _split(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for i, char in enumerate(text):
        depth += (char in "([{<") - (char in ")]}>")
        if char == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]]


def _closes_at_end(text: str) -> bool:
    depth = 0
    for i, char in enumerate(text):
        depth += (char in "([{<") - (char in ")]}>")
        if depth == 0:
            return i == len(text) - 1
    return False


class _Parser:
    """Recursive descent over sums, products, signs and powers."""

    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str]] = []
        for number, command, letters, char in _TOKEN.findall(text):
            if number:
                self.tokens.append(("number", number))
            elif command:
                self.tokens.append(("command", command))
            elif letters:
                self._letters(letters, text)
            elif char.strip():
                self.tokens.append(("char", char))
        self.at = self.depth = 0

    def _letters(self, letters: str, text: str) -> None:
        """Parse a word as a function, or a short word as a product of variables, unless the text has only words."""
        if letters in _FUNCTIONS or letters in ("sqrt", "pi"):
            self.tokens.append(("command", letters))
        # Long runs of letters are words: as products of letters, anagrams would be equal.
        elif len(letters) <= 3 and (len(letters) == 1 or re.search(r"[\d\\^*/+=-]", text)):
            self.tokens += [("letter", letter) for letter in letters]
        else:
            raise _Unreadable

    def whole(self) -> _Value:
        if not self.tokens:
            raise _Unreadable
        value = self._sum()
        if self.at < len(self.tokens):
            raise _Unreadable
        return value

    def _next(self) -> str:
        """Return the next token if it is a single character."""
        kind, text = self.tokens[self.at] if self.at < len(self.tokens) else ("end", "")
        return text if kind == "char" else ""

    def _take(self, char: str) -> bool:
        if self._next() != char:
            return False
        self.at += 1
        return True

    def _demand(self, char: str) -> None:
        if not self._take(char):
            raise _Unreadable

    def _sum(self) -> _Value:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise _Unreadable
        value = self._product()
        while (sign := self._next()) and sign in "+-":
            self.at += 1
            value = _add(value, self._product() if sign == "+" else _negative(self._product()))
        self.depth -= 1
        return value

    def _product(self) -> _Value:
        value = self._signed()
        while True:
            if self._take("*"):
                value = _times(value, self._signed())
            elif self._take("/"):
                value = _times(value, _inverse(self._signed()))
            elif self._begins():
                value = _times(value, self._power())
            else:
                return value

    def _begins(self) -> bool:
        """Return whether an implicit factor follows. A number is not one: `1 1/2` is not a product."""
        if self.at >= len(self.tokens):
            return False
        kind, text = self.tokens[self.at]
        return kind in ("letter", "command") or (kind == "char" and text in "({")

    def _signed(self) -> _Value:
        negative = False
        while (sign := self._next()) and sign in "+-":
            self.at += 1
            negative ^= sign == "-"
        value = self._power()
        return _negative(value) if negative else value

    def _power(self) -> _Value:
        base = self._primary()
        if not self._take("^"):
            return base
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise _Unreadable
        exponent = self._argument() if self._next() in ("{", "(") else self._signed()
        self.depth -= 1
        return _power(base, exponent)

    def _primary(self) -> _Value:
        if self.at >= len(self.tokens):
            raise _Unreadable
        kind, text = self.tokens[self.at]
        self.at += 1
        if kind == "number":
            return _rational(Fraction(text))
        if kind == "letter":
            return _Value((0, 1)) if text == "i" else _atom("variable", text)
        if kind == "command":
            return self._command(text)
        if text in "({":
            value = self._sum()
            self._demand(")" if text == "(" else "}")
            return value
        raise _Unreadable

    def _command(self, name: str) -> _Value:
        if name == "frac":
            above = self._argument()
            return _times(above, _inverse(self._argument()))
        if name == "sqrt":
            index = 2
            if self._take("["):
                kind, text = self.tokens[self.at] if self.at < len(self.tokens) else ("end", "")
                if kind != "number" or not text.isdigit() or not 2 <= int(text) <= 99:
                    raise _Unreadable
                self.at += 1
                self._demand("]")
                index = int(text)
            return _power(self._argument(), _rational(Fraction(1, index)))
        if name in _FUNCTIONS:
            self.depth += 1
            if self.depth > _MAX_DEPTH:
                raise _Unreadable
            power = self._argument() if self._take("^") else _rational(Fraction(1))
            value = self._argument() if self._next() in ("(", "{") else self._power()
            self.depth -= 1
            return _power(_atom("log" if name == "ln" else name, str(value.at)), power)
        if name in _GREEK:
            return _atom("variable", name)
        raise _Unreadable

    def _argument(self) -> _Value:
        """Parse a command's argument: a group, or one token (`\\frac12` is a half)."""
        if self._next() in ("{", "("):
            return self._primary()
        kind, text = self.tokens[self.at] if self.at < len(self.tokens) else ("end", "")
        # TeX without braces takes one digit: `\frac12` is a half.
        if kind == "number" and len(text) > 1 and text.isdigit():
            self.tokens[self.at] = ("number", text[1:])
            return _rational(Fraction(text[0]))
        return self._primary()


# -- arithmetic of values ----------------------------------------------------------------------------------------------


def _rational(number: Fraction) -> _Value:
    # It is a division by zero only modulo the prime, not of the number itself.
    if number.denominator % _P == 0:
        raise _Unreadable
    at = number.numerator * pow(number.denominator, -1, _P) % _P
    small = number.numerator.bit_length() + number.denominator.bit_length() <= _MAX_BITS
    return _Value((at, 0), number if small else None)


def _atom(kind: str, name: str) -> _Value:
    """Return something that is equal to nothing but itself."""
    digest = hashlib.blake2b(f"{kind}:{name}".encode(), digest_size=32).digest()
    return _Value((int.from_bytes(digest[:16], "big") % _P, int.from_bytes(digest[16:], "big") % _P))


def _add(a: _Value, b: _Value) -> _Value:
    if a.exact is not None and b.exact is not None:
        return _rational(a.exact + b.exact)
    return _settled(((a.at[0] + b.at[0]) % _P, (a.at[1] + b.at[1]) % _P))


def _negative(a: _Value) -> _Value:
    return _Value((-a.at[0] % _P, -a.at[1] % _P), None if a.exact is None else -a.exact)


def _times(a: _Value, b: _Value) -> _Value:
    if a.exact is not None and b.exact is not None:
        return _rational(a.exact * b.exact)
    return _settled(_multiply(a.at, b.at))


def _multiply(a: Point, b: Point) -> Point:
    return (a[0] * b[0] - a[1] * b[1]) % _P, (a[0] * b[1] + a[1] * b[0]) % _P


def _inverse(a: _Value) -> _Value:
    if a.exact is not None:
        return _rational(1 / a.exact)
    norm = (a.at[0] * a.at[0] + a.at[1] * a.at[1]) % _P
    if norm == 0:
        raise ZeroDivisionError
    scale = pow(norm, -1, _P)
    return _Value((a.at[0] * scale % _P, -a.at[1] * scale % _P))


def _settled(at: Point) -> _Value:
    """Return an exact value if variables and roots have cancelled to a small integer."""
    if at[1] == 0 and (at[0] < 2**20 or _P - at[0] < 2**20):
        return _Value(at, Fraction(at[0] if at[0] < 2**20 else at[0] - _P))
    return _Value(at)


def _power(base: _Value, exponent: _Value) -> _Value:
    n = exponent.exact
    # Too large or not rational: two such powers are equal only if their notation is equal.
    if n is None or abs(n.numerator) > _MAX_POWER or n.denominator > 99:
        return _atom("power", f"{base.at}^{exponent.at}")
    if n.denominator == 1:
        return _whole_power(base, n.numerator)
    if n.denominator == 2 and base.exact is not None:
        return _whole_power(_square_root(base.exact), n.numerator)
    root = _exact_root(base.exact, n.denominator)
    if root is not None:
        return _whole_power(_rational(root), n.numerator)
    return _whole_power(_atom("root", f"{n.denominator}:{base.at}"), n.numerator)


def _whole_power(base: _Value, n: int) -> _Value:
    if n < 0:
        base, n = _inverse(base), -n
    if (
        base.exact is not None
        and (base.exact.numerator.bit_length() + base.exact.denominator.bit_length()) * n <= _MAX_BITS
    ):
        return _rational(base.exact**n)
    result, square = (1, 0), base.at
    while n:
        if n & 1:
            result = _multiply(result, square)
        square, n = _multiply(square, square), n >> 1
    return _settled(result)


def _square_root(number: Fraction) -> _Value:
    """Return a number's root as a product of roots of -1 and of primes, each with a fixed sign: `sqrt(8)` equals `2
    sqrt(2)`, and `sqrt(2) sqrt(3)` equals `sqrt(6)`."""
    rest = number.numerator * number.denominator
    value = _rational(Fraction(1, number.denominator))
    # Factoring would take too long; the root is then an atom.
    if abs(rest) > _MAX_ROOT:
        return _atom("root", f"2:{_rational(number).at}")
    if rest < 0:
        value, rest = _times(value, _Value((0, 1))), -rest
    if rest == 0:
        return _rational(Fraction(0))
    for prime, count in _factors(rest):
        value = _times(value, _rational(Fraction(prime ** (count // 2))))
        if count % 2:
            value = _times(value, _Value(_root_of_prime(prime)))
    return value


@functools.lru_cache(maxsize=1024)
def _factors(number: int) -> tuple[tuple[int, int], ...]:
    """Return the prime factors of a number up to `_MAX_ROOT` with their exponents, with at most 50,000 divisions."""
    factors: list[tuple[int, int]] = []
    factor = 2
    while factor * factor <= number:
        count = 0
        while number % factor == 0:
            number, count = number // factor, count + 1
        if count:
            factors.append((factor, count))
        factor += 1 if factor == 2 else 2
    return (*factors, (number, 1)) if number > 1 else tuple(factors)


def _root_of_prime(number: int) -> Point:
    """Return a square root modulo the prime: the root of the number, or the root of its negative times i."""
    root = pow(number, (_P + 1) // 4, _P)
    if root * root % _P == number % _P:
        return root, 0
    return 0, pow(-number % _P, (_P + 1) // 4, _P)


def _exact_root(number: Fraction | None, index: int) -> Fraction | None:
    """Return the rational n-th root of a number that has one."""
    if number is None or (number < 0 and index % 2 == 0):
        return None
    parts: list[int] = []
    for part in (abs(number.numerator), number.denominator):
        guess = round(part ** (1.0 / index)) if part < 2**52 else 0
        if guess**index != part:
            return None
        parts.append(guess)
    return Fraction(int(math.copysign(parts[0], number)), parts[1])
