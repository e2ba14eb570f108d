"""Commands of the REPL that change how requests are made: budget, model, planner, task, merge, policy, n."""

from __future__ import annotations

from typing import Any, Literal

from ....core.budget import Budget
from ....core.errors import UsageError
from ....core.messages import did_you_mean
from ....core.ops import Plugin
from ....runtime.client.config import BUNDLED_MODEL, Config
from ....runtime.plugins.spec import spelled, typed
from ..conversation import Repl
from ..registry import command, cut_words

__all__: list[str] = []


@command("budget", "[tokens=N total_tokens=N cost=C seconds=S width=N … | none]", "Hard limits of each run.", "budget")
async def _budget(repl: Repl, rest: str) -> None:
    manner = repl.session.manner
    if rest == "none":
        manner.set("budget", None)
    elif rest:
        given: dict[str, Any] = manner.request.budget.model_dump()
        for word in rest.replace(",", " ").split():
            name, equals, value = word.partition("=")
            if not equals or name not in Budget.model_fields:
                near = did_you_mean(name, Budget.model_fields)
                raise UsageError(f"{word!r} is no limit{near}: write {', '.join(Budget.model_fields)} as tokens=500")
            given[name] = None if value in ("none", "") else value
        manner.set("budget", given)
    limits = manner.request.budget.limits
    config = repl.session.config
    for name, value in (("tokens", config.tokens), ("seconds", config.seconds)):
        if value is not None:
            limits.setdefault(name, value)
    repl.screen.print("budget: " + (", ".join(f"{name} {value:g}" for name, value in limits.items()) or "no limits"))


@command(
    "model",
    "[DIR] [worker=NAME base_url=URL engines=N …]",
    "Show the model, or close the engine and take another.",
    "model",
    idle=True,
)
async def _model(repl: Repl, rest: str) -> None:
    settings: dict[str, Any] = {}
    for word in cut_words(rest):
        name, equals, value = word.partition("=")
        if not equals:
            name, value = "model", str(BUNDLED_MODEL) if word == "bundled" else word
        if name not in Config.model_fields:
            raise UsageError(f"there is no setting {name!r}{did_you_mean(name, Config.model_fields)}")
        settings[name] = value
    if settings.get("script") and "worker" not in settings:
        settings["worker"] = "scripted"
    if settings.get("base_url") and "worker" not in settings:
        settings["worker"] = "http"
    if settings:
        if repl.session.started:
            repl.screen.print("closing the engine …", style="dim")
        await repl.session.swap(**settings)
        repl.renamed()
        repl.warm_up()
    repl.screen.print(f"model: {repl.model} on {repl.session.config.worker}")


def _setter(name: str, kind: Literal["planner", "task", "merge"], about: str) -> None:
    async def do(repl: Repl, rest: str) -> None:
        manner = repl.session.manner
        if rest in ("none", "default"):
            manner.set(name, None)
        elif rest:
            spec = Plugin.of(typed(rest))
            if kind == "task":
                repl.session.plugins.class_of("task", spec.name)
            else:
                getattr(repl.session.plugins, kind)(spec)
            manner.set(name, spec)
        default: Any = getattr(repl.session.config, name, None)
        repl.screen.print(
            f"{name}: {spelled(manner.given(name) or default) or ('plain' if kind == 'task' else 'the planner’s')}"
        )

    command(name, "[NAME[:k=v,…]]", about, kind)(do)


_setter("planner", "planner", "How the work is split.")
_setter("task", "task", "What a question means.")
_setter("merge", "merge", "Merge of branches into one answer.")


@command("policy", "[NAME[:k=v,…] … | +NAME | -NAME | none]", "What orders, places and prunes steps.", "policy")
async def _policy(repl: Repl, rest: str) -> None:
    manner, standing = repl.session.manner, repl.session.config.standing_policies
    now = list(standing if manner.given("policies") is None else manner.request.policies)
    words = cut_words(rest)
    if words and words != ["none"]:
        fresh = [] if words[0][0] not in "+-" else now
        for word in words:
            spec = Plugin.of(typed(word.lstrip("+-")))
            known = [policy for policy in fresh if policy.name == spec.name]
            if word.startswith("-"):
                if not known:
                    in_use = [other.name for other in fresh]
                    raise UsageError(f"the policy {spec.name!r} is not in use{did_you_mean(spec.name, in_use)}")
                fresh = [policy for policy in fresh if policy.name != spec.name]
                continue
            repl.session.plugins.policy(spec)
            fresh = [*(policy for policy in fresh if policy.name != spec.name), spec]
        manner.set("policies", fresh)
    elif words:
        manner.set("policies", ())
    used = standing if manner.given("policies") is None else manner.request.policies
    repl.screen.print(f"policies: {' '.join(map(spelled, used)) or 'none'}")


@command("n", "[N | none]", "How many branches, for planners that have the choice.")
async def _n(repl: Repl, rest: str) -> None:
    manner = repl.session.manner
    if rest == "none":
        manner.set("n", None)
    elif rest:
        if not rest.isdecimal() or int(rest) < 1:
            raise UsageError(f"{rest!r} is not a number of branches: n must be at least 1")
        manner.set("n", int(rest))
    repl.screen.print(f"n: {manner.request.n or repl.session.config.n or 'the planner’s'}")
