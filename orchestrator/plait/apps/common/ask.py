"""Puts the questions of tools to the person at the terminal."""

from __future__ import annotations

import sys

from pydantic import JsonValue

from ...core.errors import Unanswered
from ...core.tools.context import Question
from .terminal import safe

__all__ = ["ask_on_terminal"]


def ask_on_terminal(question: Question) -> JsonValue:
    """Ask on standard error and read the answer from standard input; choices may be given by their number.

    Blocks until a line is there that answers the question. Raises `Unanswered` where there is no terminal, or its input
    ends.
    """
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        raise Unanswered(
            f"{question.text!r}: nobody can be asked, as this is no terminal; run the command in one, or answer "
            "through the SDK (on_ask=…)"
        )
    while True:
        sys.stderr.write(safe(_worded(question)))
        sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            raise Unanswered(f"{question.text!r}: the terminal's input ended before there was an answer")
        reply = line.strip()
        try:
            return question.check(_chosen(question, reply))
        except Unanswered as error:
            sys.stderr.write(safe(f"{error}\n"))


def _worded(question: Question) -> str:
    choices = "".join(f"  {number}  {choice}\n" for number, choice in enumerate(question.choices, 1))
    return f"\n{question.step} asks: {question.text}\n{choices}> "


def _chosen(question: Question, reply: str) -> JsonValue:
    if reply.isdecimal() and reply not in map(str, question.choices) and 1 <= int(reply) <= len(question.choices):
        return question.choices[int(reply) - 1]
    return reply
