"""Commands of the REPL for requests (budget, model, planner, task, merge, policy, n) and runs (plan, run, branches,
why, and the verbs that act on the running run)."""

from __future__ import annotations

from typing import Any, Literal

from ....core.budget import Budget
from ....core.errors import UsageError
from ....core.messages import did_you_mean, pluralise
from ....core.ops import Plugin
from ....runtime.client.config import BUNDLED_MODEL, Config
from ....runtime.control.verbs import VERBS, Verb
from ....runtime.plugins.spec import spelled, typed
from ...commands.run import where_time_went
from ...common import graph
from ...common.tree import StepTree
from ..conversation import Repl
from ..registry import command, cut_words, take_flags
from ..state import ReplTurn
from ..view import Text, story

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


__all__: list[str] = []


@command("plan", "[QUESTION]", "The first plan for a question (the last), without running it.", "text")
async def _plan(repl: Repl, rest: str) -> None:
    made = repl.session.plan(rest or repl.last_question())
    repl.screen.print(Text(graph.text(made).rstrip(), no_wrap=True, overflow="ellipsis"))
    repl.screen.print(graph.summary(made), style="dim")


@command("run", "[QUESTION]", "Ask a question (the last one again).", "text")
async def _run(repl: Repl, rest: str) -> None:
    await repl.ask(rest or repl.last_question())


@command("branches", "[RUN]", "The steps of a run: tokens, cache hits, confidence, times, why given up.", "turn")
async def _branches(repl: Repl, rest: str) -> None:
    turn = repl.turn_of(rest)
    repl.screen.print(Text(f"run {turn.run or '-'}  {turn.title}", style="dim", no_wrap=True, overflow="ellipsis"))
    if not turn.steps:
        repl.screen.print("no steps yet")
        return
    tree = StepTree.of_steps(turn.steps.values())
    repl.screen.print(tree.renderable(repl.screen.width, head=False))


@command("why", "[STEP] [--full]", "One step's story, verdict or failure; without a step, the answer's.", "step")
async def _why(repl: Repl, rest: str) -> None:
    found_flags, rest = take_flags(rest, ("--full",))
    turn = repl.turn_of("")
    if not rest:
        _why_answer(repl, turn)
        return
    # Search the running run first, then the latest run with such a step.
    for asked in [turn, *reversed(repl.session.turns)]:
        steps = asked.find(rest)
        if steps:
            break
    else:
        known = [step.path for step in turn.steps.values()]
        raise UsageError(f"there is no step {rest!r}{did_you_mean(rest, known)}: /branches lists them")
    for step in steps[:8]:
        repl.screen.print(story(step, full=bool(found_flags)))
    if len(steps) > 8:
        repl.screen.print(f"and {len(steps) - 8} more: name one of {', '.join(one.path for one in steps[8:14])}")


def _why_answer(repl: Repl, turn: ReplTurn) -> None:
    answer = turn.answer
    if answer is None:
        raise UsageError("there is no answer yet: name a step, as in /why child-3")
    chose = any(step.kind == "join" for step in turn.steps.values())
    none = "nothing was chosen" if chose else "one line of reasoning, nothing was chosen among"
    lines = [f"{answer.status}: {answer.why or none}"]
    if answer.failure is not None:
        lines.append(f"{answer.failure.kind}: {answer.failure.message}")
    given_up: dict[str, int] = {}
    for step in turn.steps.values():
        if step.state in ("cancelled", "failed"):
            given_up[step.reason] = given_up.get(step.reason, 0) + 1
    lines += [f"{pluralise(count, 'step')} given up: {reason}" for reason, count in given_up.items()]
    spent = where_time_went(answer)
    if spent != "time: ":
        lines.append(spent)
    for line in lines:
        repl.screen.print(line)


_MORE = {"pause": ": running steps continue, no new step starts; /resume"}


def _enter(verb: Verb) -> None:
    """Register a verb as a command for the running run: one word per argument, the last takes the rest."""
    names = [argument.name for argument in verb.arguments]
    needed = [argument.name for argument in verb.arguments if argument.required]
    usage = " ".join(name.upper() if name in needed else f"[{name.upper()}]" for name in names)

    async def do(repl: Repl, rest: str) -> None:
        words = rest.split(None, max(0, len(names) - 1)) if names else []
        if len(words) < len(needed):
            raise UsageError(f"/{verb.name} needs a {needed[len(words)]}: /{verb.name} {usage}")
        done = repl.session.steer(verb, **dict(zip(names, words, strict=False)))
        steps = done["steps"] if done else []
        what = ", ".join(steps[:6]) + (" …" if len(steps) > 6 else "") if done else " ".join(words)
        repl.screen.print(f"{verb.past} {what}".rstrip() + _MORE.get(verb.name, ""), style="dim")

    command(verb.name, usage, verb.about, "step" if "step" in names else "")(do)


for _verb in VERBS.values():
    if _verb.of_run and _verb.name != "answer":  # the next input answers the question
        _enter(_verb)
