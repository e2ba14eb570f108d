"""Check whether a model's tokenizer and chat template match those of a model trained on a dialect.

A model that was not trained on the dialect never spawns threads and raises no error; this check detects it beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .dialects import Dialect

_SHOWN = 4


def preflight(table: Dialect, encode: Callable[[str], Sequence[int]], opening: str | None = None) -> tuple[str, ...]:
    """Return warnings about running a dialect on a model.

    `encode` returns a text's token ids without special tokens. `opening` is a short prompt in the model's chat
    template: empty if the model has no template, `None` if the template is unknown.
    """
    warnings: list[str] = []
    ids = {tag: tuple(encode(tag)) for tag in table.tags}
    split = [tag for tag in table.tags if len(ids[tag]) != 1]
    if split:
        shown = ", ".join(f"{tag} is {len(ids[tag])} tokens" for tag in split[:_SHOWN])
        more = f" and {len(split) - _SHOWN} more tags are several" if len(split) > _SHOWN else ""
        warnings.append(
            f"{shown}{more}: in the tokenizer of a model trained on this dialect each is one token, so this model was "
            "probably not trained on it and will not spawn; use the model's own tokenizer and weights"
        )
    same: dict[tuple[int, ...], list[str]] = {}
    for tag in table.tags:
        if tag not in split:
            same.setdefault(ids[tag], []).append(tag)
    for tags in same.values():
        if len(tags) > 1:
            warnings.append(f"{' and '.join(tags[:_SHOWN])} are the same token, so the tokenizer does not know them")
    for before, after in () if warnings else _seams(table):
        if tuple(encode(before + after)) != (*encode(before), *encode(after)):
            warnings.append(
                f"{before!r} and {after!r} share a token where they meet: contexts here are put together piece by "
                "piece, so they differ there from what the model was trained on"
            )
    if opening is not None and table.chat and table.tags:
        warnings += _template(table, opening)
    return tuple(warnings)


def _seams(table: Dialect) -> list[tuple[str, str]]:
    """Return pairs of texts that are adjacent in a context: the end of the model's text and the controller's text after
    it."""
    block, number = table.join, "1"
    header = table.header.replace("{id}", number).replace("{number}", number)
    seams = [(table.fork, header)] if table.forked and header else []
    if block.carry and block.end:
        entry = block.hit.partition("{text}")[0].replace("{item}", number)
        seams += [(block.end, entry), (block.end, block.tail)]
    return [(before, after) for before, after in seams if before and after]


def _template(table: Dialect, opening: str) -> list[str]:
    if not opening:
        return ["the model has no chat template, so questions are put to it as plain text: is it the instructed model?"]
    if any(tag in opening for tag in table.tags):
        return ["the chat template itself writes the dialect's tags, so spawn lists may be read where there are none"]
    if "</think>" in opening[-40:]:
        return [
            "the chat template closes the model's thoughts (</think>) before it begins, and threads are spawned in "
            "them: choose the template's thinking mode"
        ]
    return []
