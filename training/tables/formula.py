"""A question as a formula: the small translation that a split prompt asks for in pieces."""

from __future__ import annotations

from plait_bench.tasks.tables.language import (
    CountQuestion,
    Entity,
    Field,
    Find,
    If,
    Is,
    Number,
    Operation,
    Question,
    Total,
    Value,
    Which,
    Who,
)


def formula(part: Question | Value | Entity) -> str:
    """Return a question as a formula: `sum(age(owner(Ardan)), 31)`."""
    match part:
        case Entity(name, relations):
            return "".join(f"{relation}(" for relation in relations) + name + ")" * len(relations)
        case Number(text):
            return text
        case Field(attribute, entity):
            return f"{attribute}({formula(entity)})"
        case Operation(name, left, right):
            return f"{name}({formula(left)}, {formula(right)})"
        case Find(value):
            return formula(value)
        case Who(entity):
            return formula(entity)
        case Is(test, left, right):
            return f"{test}({formula(left)}, {formula(right)})"
        case Which(extreme, attribute, entities):
            return f"{extreme}({attribute}, {_listed(entities)})"
        case Total(attribute, entities):
            return f"total({attribute}, {_listed(entities)})"
        case CountQuestion(attribute, entities, limit):
            return f"count({attribute}, {_listed(entities)}, {formula(limit)})"
        case If(condition, then, otherwise):
            return f"if({formula(condition)}, {formula(then)}, {formula(otherwise)})"


def _listed(entities: tuple[Entity, ...]) -> str:
    return f"[{', '.join(map(formula, entities))}]"
