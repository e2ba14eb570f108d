"""Typed tools by the thousand, and questions whose smallest plan is known.

Tools come in domains of about ten. In each, things have identifiers (`rental_invoice_id`), a tool needs some of them
and makes one, and each thing has one maker, so that the smallest plan for a thing is what its maker needs, and so on. A
question names the thing, in other words than the tools' own with a given probability, and seldom what leads there.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pydantic import JsonValue

from plait.core.errors import ToolError
from plait.core.tools.schemas import required_arguments
from plait.core.tools.tool import Tool, ToolSpec

__all__ = ["Catalog", "MockTool", "Request", "Thing"]

_PLACES = """
hotel rental parcel clinic library airline railway bank payroll warehouse school museum festival
bakery harbour farm garage theatre stadium council pharmacy laboratory orchard brewery vineyard
cinema gallery studio kennel nursery quarry foundry mill observatory aquarium zoo casino spa gym
dojo embassy court prison archive chapel market ferry tram depot academy hostel resort marina
refinery reactor shipyard tannery pottery printer smithy
"""
PLACES = tuple(_PLACES.split())
_THINGS = """
customer invoice booking ticket contract schedule inspection payment refund shipment permit survey
rating alert budget forecast roster voucher complaint licence sample report lease audit quote
"""
THINGS = tuple(_THINGS.split())
OTHER_WORDS = {
    "customer": "client", "invoice": "bill", "booking": "reservation", "ticket": "pass", "contract": "agreement",
    "schedule": "timetable", "inspection": "check", "payment": "transfer", "refund": "money back",
    "shipment": "delivery", "permit": "authorisation", "survey": "questionnaire", "rating": "score",
    "alert": "warning", "budget": "spending plan", "forecast": "outlook", "roster": "duty list",
    "voucher": "coupon", "complaint": "grievance", "licence": "certificate", "sample": "specimen",
    "report": "write-up", "lease": "tenancy", "audit": "examination", "quote": "offer",
}  # fmt: skip
VERBS = ("create", "issue", "prepare", "find", "register", "make")
FIRST = ("name", "city", "day")
"""What a question says by itself."""
NAMES = ("Ardan", "Brelom", "Cirwen", "Doreth", "Elmira", "Fadrin", "Goswin", "Halvar")
A_DOMAIN = 10
"""Things of a domain."""


@dataclass(frozen=True, slots=True)
class Thing:
    """Something that exactly one tool makes."""

    place: str
    noun: str
    verb: str
    needs: tuple[str, ...]
    """Kinds that its maker needs."""
    level: int
    """Calls one after another in the smallest plan for it."""

    @property
    def kind(self) -> str:
        """Its identifier, as arguments are named."""
        return f"{self.place}_{self.noun}_id"

    @property
    def tool(self) -> str:
        """Name of its maker."""
        return f"{self.verb}_{self.place}_{self.noun}"

    @property
    def spec(self) -> ToolSpec:
        """Its maker."""
        text: JsonValue = {"type": "string"}
        first: dict[str, JsonValue] = {} if self.needs else {"name": text}
        args: dict[str, JsonValue] = dict.fromkeys(self.needs, text) | first
        returns: JsonValue = {self.kind: text, "note": text}
        return ToolSpec(
            name=self.tool,
            description=f"{self.verb.capitalize()} a {self.noun} at a {self.place}.",
            parameters={"type": "object", "properties": args, "required": [*args], "additionalProperties": False},
            returns={"type": "object", "properties": returns, "required": [*returns], "additionalProperties": False},
        )


@dataclass(frozen=True, slots=True)
class Request:
    """A question, the thing that it asks for, and the smallest plan."""

    text: str
    name: str
    target: Thing
    things: tuple[Thing, ...]
    """What has to be made, those needed first."""

    @property
    def edges(self) -> frozenset[tuple[str, str]]:
        """Which tool's value another takes."""
        makers = {each.kind: each.tool for each in self.things}
        return frozenset((makers[kind], each.tool) for each in self.things for kind in each.needs)


@dataclass
class Catalog:
    """`tools` typed tools; `apis` of them belong to the questions' domains."""

    apis: int = 300
    tools: int = 300
    seed: int = 5
    reworded: float = 0.3
    """How likely a thing is called by another word in a question."""
    things: dict[str, Thing] = field(default_factory=dict[str, Thing], init=False)
    """By kind."""
    asked: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        rng = random.Random(self.seed)
        domains = [(place,) for place in PLACES]
        more = [(one, two) for one in PLACES for two in PLACES if one != two]
        rng.shuffle(domains)
        rng.shuffle(more)
        for at, words in enumerate([*domains, *more]):
            if len(self.things) >= self.tools:
                break
            # each domain by numbers of its own, so that the first ones do not depend on how many there are
            self._domain("_".join(words), random.Random(f"{self.seed}/{at}"), self.tools - len(self.things))
        self.asked = min(self.apis, self.tools)

    def _domain(self, place: str, rng: random.Random, room: int) -> None:
        made: list[Thing] = []
        for noun in rng.sample(THINGS, A_DOMAIN)[:room]:
            needs = rng.sample(made, min(len(made), rng.choice((0, 1, 1, 2)))) if made else []
            level = 1 + max((each.level for each in needs), default=0)
            made.append(Thing(place, noun, rng.choice(VERBS), tuple(each.kind for each in needs), level))
        self.things |= {each.kind: each for each in made}

    @cached_property
    def specs(self) -> list[ToolSpec]:
        """All makers."""
        return [each.spec for each in self.things.values()]

    def needed(self, thing: Thing) -> tuple[Thing, ...]:
        """Return the things that a thing needs, itself last."""
        found: dict[str, Thing] = {}
        for kind in thing.needs:
            found |= {each.kind: each for each in self.needed(self.things[kind])}
        return (*found.values(), thing)

    def requests(self, count: int, seed: int, seen: bool = False) -> list[Request]:
        """Return questions about one half of the domains of the questions: those that settings may be chosen on
        (`seen`), or the others."""
        rng = random.Random(seed)
        pool = list(self.things.values())[: self.asked]
        places = list(dict.fromkeys(each.place for each in pool))
        half = frozenset(places[: len(places) // 2])
        targets = [each for each in pool if each.level > 1 and (each.place in half) == seen]
        found: list[Request] = []
        for _ in range(count):
            target, name = rng.choice(targets), rng.choice(NAMES)
            text = f"At the {target.place.replace('_', ' ')}, {self._words(target, rng)} for {name}."
            found.append(Request(text, name, target, self.needed(target)))
        return found

    def _words(self, thing: Thing, rng: random.Random) -> str:
        noun = OTHER_WORDS[thing.noun] if rng.random() < self.reworded else thing.noun
        verb = rng.choice(("I need a", "get me a", "please arrange a", f"{thing.verb} a"))
        via = ""
        if thing.needs and rng.random() < 0.3:
            via = f" (there is no {self.things[thing.needs[0]].noun} yet)"
        return f"{verb} {noun}{via}"


class MockTool(Tool[..., Any]):
    """A tool that takes only identifiers that their own makers gave out."""

    def __init__(self, thing: Thing) -> None:
        async def make(**args: str) -> JsonValue:
            for kind in thing.needs:
                if not args[kind].startswith(f"{kind}:"):
                    raise ToolError(f"{args[kind]!r} is no {kind}")
            mark = zlib.crc32(repr(sorted(args.items())).encode())
            return {thing.kind: f"{thing.kind}:{mark:08x}", "note": "made"}

        spec = thing.spec
        self.fn, self.spec = make, spec
        self.name, self.description, self.parameters = spec.name, spec.description, spec.parameters
        self.side_effects, self.idempotent, self.timeout = False, False, None
        self.is_async, self.context, self.approve = True, None, False

    def bind(self, args: Mapping[str, JsonValue]) -> dict[str, object]:
        """Return the arguments. Raises `ToolError` for those that are missing, unknown or no texts."""
        wanted = required_arguments(self.parameters)
        if sorted(args) != sorted(wanted) or not all(isinstance(each, str) for each in args.values()):
            raise ToolError(f"{self.name} takes {', '.join(wanted)} as texts, not {args!r:.200}")
        return dict(args)
