"""A world that does to the machine all that the real one can: any plan, any order, late, duplicate and lost news.

Every choice is drawn from one `random.Random`, so hypothesis can steer and shrink it, and a seed can repeat it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from pydantic import JsonValue

from plait.core.budget import Budget
from plait.core.events import (
    Action,
    Cancelled,
    Dispatch,
    Event,
    Expand,
    Expanded,
    Failed,
    Finish,
    Limited,
    Paused,
    Progressed,
    Pruned,
    Stopped,
    Submitted,
    Succeeded,
)
from plait.core.interfaces import Defer, Hedge, Pin, Policy, ReviewAt, Stop
from plait.core.ops import Kind, ModelCall, Plugin, Ref, Text
from plait.core.plan import Plan, Step
from plait.core.request import Request, Retries
from plait.core.result import Result, Usage
from plait.core.states import State
from plait.core.view import StepView, View
from plait.machine.machine import Machine
from plait.machine.records import Account, Scope
from tests.machine.kit import World, call, fail_with, join, think

NAMES = "abcdefgh"
WORKERS = ("w1", "w2", "w3")


def check_not_stuck(machine: Machine) -> None:
    """Fail if a run can only wait for ever: it has no attempt, no expansion and no timer, and its
    ready steps wait neither for a slot that is taken nor for a worker that will return."""
    hosts = machine.workers.values()
    room = any(host.returning or (host.up and host.running) for host in hosts)
    for run in machine.runs.values():
        waits = run.live or any(node.state is State.EXPANDING for node in run.nodes)
        waits = waits or any(node.state is State.READY for node in run.prompt_sizes.counting.values())
        queued = room and any(node.state is State.READY for node in run.nodes)
        assert waits or queued or run.paused or machine.timers.pending(run), f"{run.id} is stuck"


class Height(Policy):
    """Longest way to the output first."""

    def rank(self, step: StepView, view: View) -> tuple[float, ...]:
        return (-step.upward_rank,)


class LastFree(Policy):
    """The last worker that has room."""

    def place(self, step: StepView, view: View) -> str | None:
        free = [each.name for each in view.workers if each.free and step.kind in each.serves]
        return free[-1] if free else None


class Prune(Policy):
    """Gives up what has the same readers as a step that was just done, if its name is late in the alphabet."""

    def review(self, event: Event, view: View) -> Sequence[Stop]:
        if event.kind != "succeeded" or view.subject is None:
            return ()
        siblings = [each for reader in view.subject.consumers for each in reader.needs]
        return [Stop(each.id, "pruned") for each in siblings if each.plan.name > "d" and not each.state.ended]


class Broken(Policy):
    """Raises about any step named `h`."""

    def rank(self, step: StepView, view: View) -> tuple[float, ...]:
        if step.plan.name == "h":
            raise RuntimeError("no rank for this")
        return ()

    def review(self, event: Event, view: View) -> Sequence[Stop]:
        if view.subject is not None and view.subject.plan.name == "g":
            raise RuntimeError("no opinion on this")
        return ()


class Holding(Policy):
    """Holds some steps back some of the time, behind the first letter of their name."""

    def place(self, step: StepView, view: View) -> str | Pin | Defer | None:
        if step.plan.name in "bdfh" and int(view.now) % 3:
            return Defer("not now", behind=step.plan.name)
        return Pin(view.workers[0].name, "the first") if step.plan.name == "a" else None


class Hedging(Policy):
    """A second attempt for whatever runs, whenever it is looked at; and a look every two seconds."""

    def review(self, event: Event, view: View) -> Sequence[Stop | Hedge | ReviewAt]:
        running = [each for each in view.steps(view.run) if each.worker is not None]
        where = view.workers[-1].name if len(running) % 2 else None
        return [*(Hedge(each.id, "hedged", where) for each in running), ReviewAt(view.now + 2.0)]


POLICIES: dict[str, Policy] = {
    "height": Height(),
    "last-free": LastFree(),
    "prune": Prune(),
    "broken": Broken(),
    "holding": Holding(),
    "hedging": Hedging(),
}


# -- random plans ------------------------------------------------------------------------------------------------------


def random_budget(rng: Random, chance: float) -> Budget | None:
    """One or two limits, mostly such that something can be done under them."""
    if rng.random() >= chance:
        return None
    low = 0 if rng.random() < 0.05 else 1
    limits = {
        "tokens": rng.randint(low, 90),
        "seconds": rng.randint(low, 40),
        "attempts": rng.randint(low, 15),
        "width": rng.randint(1, 3),
        "cost": rng.randint(low, 6),
        "steps": rng.randint(low, 20),
    }
    chosen = rng.sample(["tokens", "tokens", "tokens", "width", "width", "width", *limits], rng.randint(1, 2))
    return Budget(**{name: limits[name] for name in chosen})


Names = dict[str, bool]
"""Names that a step can see, and whether each has a context to continue."""


def has_context(step: Step) -> bool:
    return step.op.kind == "think" or (step.op.kind == "join" and step.expands)


def random_step(rng: Random, name: str, known: Names, around: Names) -> Step:
    """A step that refers to known steps, seldom to something it must not; `around` are the expanders around it."""
    names = [each for each in known if each != name]
    if rng.random() < 0.01:
        names.append(rng.choice([*NAMES, "nobody", *around]))
    needs = tuple(rng.sample(names, min(len(names), rng.choice([0, 0, 1, 1, 2]))))
    expands = rng.random() < 0.25
    budget = random_budget(rng, 0.1)
    kind = rng.choice(["think", "think", "call", "join"] if names else ["think", "call"])
    if kind == "join":
        branches = tuple(rng.sample(names, rng.randint(1, min(4, len(names)))))
        shape = rng.choice(["all", "quorum", "best-effort", "any-end"])
        return join(
            name,
            *branches,
            merge=rng.choice(["collect", "vote", "collect", "vote", "broken", "broken-decided"]),
            quorum=rng.randint(1, len(branches) + (rng.random() < 0.1)) if shape == "quorum" else None,
            best_effort=shape == "best-effort",
            any_end=shape == "any-end",
            deadline=rng.choice([None, None, 2.0, 10.0]),
            early=rng.random() < 0.5,
            expands=expands,
            budget=budget,
        )
    if kind == "call":
        args: dict[str, JsonValue] = {"x": {"$ref": rng.choice(names)}} if names and rng.random() < 0.3 else {}
        side = rng.random() < 0.2
        return call(name, *needs, args=args, expands=expands, budget=budget, side_effects=side)
    contexts = [each for each, has in [*known.items(), *around.items(), *around.items()] if has and each != name]
    after = rng.choice(contexts) if contexts and rng.random() < 0.4 else None
    prompt: list[Text | Ref] = [Text(text=name)]
    if names and rng.random() < 0.3:
        prompt.append(Ref(step=rng.choice(names)))
    return think(
        name,
        *needs,
        after=after,
        prompt=prompt,
        tokens=rng.randint(1, 20),
        stream=rng.random() < 0.5,
        expands=expands,
        budget=budget,
        priority=rng.choice([0, 0, 0, 1, -1]),
        model=rng.choice([None] * 8 + ["m", "n"]),
    )


def random_plan(rng: Random, taken: Names, outer: Names, around: Names, *, whole: bool) -> Plan:
    """A plan of up to six steps; `whole` names an output."""
    free = [name for name in NAMES if name not in taken] if rng.random() < 0.98 else list(NAMES)
    names = free[: rng.randint(1, 6)] or ["z"]
    if rng.random() < 0.2:
        rng.shuffle(names)
    known = outer | taken
    for name in names:
        known.pop(name, None)
    steps: list[Step] = []
    for name in names:
        steps.append(random_step(rng, name, known, {each: has for each, has in around.items() if each not in names}))
        known[name] = has_context(steps[-1])
    output = rng.choice([names[-1], names[-1], *names, *taken]) if whole or rng.random() < 0.3 else None
    if rng.random() < 0.01:
        output = "nobody"
    if rng.random() < 0.1:
        steps.reverse()
    return Plan(steps=tuple(steps), output=output, budget=random_budget(rng, 0.15))


def seen_from(scope: Scope | None) -> tuple[Names, Names]:
    """Names of the scopes around a scope, and of the expanders around it."""
    outer: Names = {}
    around: Names = {}
    while scope is not None:
        if scope.owner is not None:
            around.setdefault(scope.owner.step.name, has_context(scope.owner.step))
        scope = scope.parent
        for name, node in scope.names.items() if scope is not None else ():
            outer.setdefault(name, has_context(node.step))
    return {name: has for name, has in outer.items() if name not in around}, around


# -- the world ---------------------------------------------------------------------------------------------------------


class Chaos(World):
    """Workers that generate tokens truly counted, whoever is told of them."""

    def __init__(self, rng: Random) -> None:
        super().__init__(slots=0, policies=POLICIES, grace=3.0, lease=rng.choice([None, 15.0]))
        self.rng = rng
        self.generated: dict[int, int] = {}
        self.spent: dict[Account, int] = {}
        """What was truly generated under each account, as far as anybody can know of it."""
        self.silent: set[int] = set()
        """Attempts whose worker has forgotten them."""
        self.readers: list[Expand] = []
        """Results that a planner has not yet answered."""
        self.ids: dict[int, tuple[int, ...]] = {}
        """By attempt, of workers that take ids: those it was given and those it told."""
        self.hushed: set[int] = set()
        """Attempts of which news was lost: they tell no more ids."""
        self.tried: dict[str, int] = {}
        self.steps: dict[str, list[int]] = {}
        """Attempts, by step."""
        self.submitted: list[str] = []
        self.accounts: dict[Account, None] = {}

    # -- rules that hold of every answer

    def send(self, event: Event) -> list[Action]:
        actions = super().send(event)
        for node in self.machine.nodes.values():
            if node.account is not None:
                self.accounts.update(dict.fromkeys((node.account, *node.account.around)))
        for account, spent in self.spent.items():
            limit = None if account.changed else account.budget.tokens
            assert limit is None or spent <= limit, f"{account.owner}: {spent} tokens of {limit} were generated"
        for attempt in sorted(self.silent - set(self.machine.attempts)):
            self.silent.remove(attempt)
            self._answered(attempt)
        check_not_stuck(self.machine)
        return actions

    def _take(self, action: Action) -> None:
        super()._take(action)
        match action:
            case Dispatch(job=job):
                self.tried[job.step] = self.tried.get(job.step, 0) + 1
                node = self.machine.nodes[job.step]
                assert self.tried[job.step] == 1 or not node.step.side_effects, "side effects were tried twice"
                self.generated[job.attempt] = 0
                alive = [each for each in self.machine.attempts.values() if each.node is node and each.state == "live"]
                assert len(alive) <= 2
                assert len({each.worker.name for each in alive}) == len(alive), "both attempts are on one worker"
                before = [self.ids.get(each, ()) for each in self.steps.setdefault(job.step, [])]
                told = job.generated
                assert not told or any(each[: len(told)] == told for each in before), "ids that nobody generated"
                assert not told or len(told) <= job.op.sampling.max_tokens  # type: ignore[union-attr]
                self.steps[job.step].append(job.attempt)
                self.ids[job.attempt] = told if action.worker != "w3" else ()
                if isinstance(job.op, ModelCall):
                    assert job.op.after is None
                    assert all(part.kind != "ref" for part in job.op.prompt)
            case Expand(result=Result()):
                self.readers.append(action)
            case Finish():
                assert not [each for each in self.machine.attempts.values() if each.node.run.id == action.run]
                answered = action.result is not None
                assert answered or action.failure is not None
                assert action.status != "done" or answered
                assert not (answered and action.partial)
                assert 0 <= action.usage.cancelled <= action.usage.completion
            case _:
                pass

    def generate(self, attempt: int, tokens: int) -> int:
        """Let a worker generate up to so many tokens more; return how many it was."""
        op = self.jobs[attempt].job.op
        limit = op.sampling.max_tokens if isinstance(op, ModelCall) else 0
        limit -= len(self.jobs[attempt].job.generated)
        more = min(tokens, limit - self.generated[attempt])
        self.generated[attempt] += more
        node = self.machine.nodes.get(self.jobs[attempt].job.step)
        if node is not None and node.account is not None:
            for account in (node.account, *node.account.around):
                self.spent[account] = self.spent.get(account, 0) + more
        return more

    # -- what may happen

    def some_attempt(self) -> int | None:
        alive = [number for number in self.jobs if number not in self.silent]
        return self.rng.choice(alive) if alive else None

    def do_submit(self) -> None:
        run = f"r{len(self.submitted)}"
        if len(self.submitted) >= 6:
            return
        first = random_plan(self.rng, {}, {}, {}, whole=True)
        self.submitted.append(run)
        names = ["height", "last-free", "prune", "holding", "holding", "hedging", "hedging", "broken"]
        policies = self.rng.sample(names, self.rng.choice([0, 0, 1, 2, 3]))
        request = Request(
            text="unreadable" if self.rng.random() < 0.01 else "",
            budget=random_budget(self.rng, 0.5) or Budget(),
            retries=Retries(think=self.rng.randint(0, 2), call=self.rng.randint(0, 1), lost=self.rng.randint(0, 2)),
            policies=tuple(Plugin(name=name) for name in policies),
        )
        self.send(Submitted(at=self.now, run=run, request=request, plan=first))

    def do_progress(self) -> None:
        attempt = self.some_attempt()
        if attempt is None:
            return
        tokens = self.generate(attempt, self.rng.randint(0, 8))
        if self.rng.random() >= 0.85:  # this news is lost
            self.hushed.add(attempt)
            return
        ids: tuple[int, ...] = ()
        if self.jobs[attempt].worker != "w3" and attempt not in self.hushed:
            known = self.ids[attempt]
            ids = tuple(1000 * attempt + len(known) + i for i in range(tokens))
            self.ids[attempt] = known + ids
        self.send(Progressed(at=self.now, attempt=attempt, text="x" * tokens, tokens=tokens, ids=ids))

    def do_answer(self) -> None:
        attempt = self.some_attempt()
        if attempt is None:
            return
        told = attempt in self.stopping and self.rng.random() < 0.7
        self.generate(attempt, self.rng.choice([0, 1, 5, 20]))
        op = self.jobs[attempt].job.op
        generated = self.generated[attempt]
        usage = Usage(prompt=3, completion=generated, cost=self.rng.choice([0.0, 0.0, 1.0]))
        how = "stopped" if told else self.rng.choices(["succeeded", "failed", "stopped"], [80, 15, 5])[0]
        if how == "succeeded":
            told = self.jobs[attempt].job.generated if self.jobs[attempt].worker != "w3" else ()
            ids = told + tuple(range(generated)) if self.rng.random() < 0.5 or told else ()
            full = isinstance(op, ModelCall) and generated + len(told) == op.sampling.max_tokens
            value = (
                self.rng.choice(["x", "y", ""]) if isinstance(op, ModelCall) else self.rng.choice([1, {"k": "v"}, "x"])
            )
            result = Result(
                value=value,
                prompt_ids=(7, 8) if ids else (),
                token_ids=ids,
                usage=usage,
                finish="length" if full else "stop",
            )
            self._answered(attempt)
            self.send(Succeeded(at=self.now, attempt=attempt, result=result))
        elif how == "failed":
            failure = fail_with(retryable=self.rng.random() < 0.5, lost=self.rng.random() < 0.2)
            self._answered(attempt)
            told_usage = usage if self.rng.random() < 0.8 or generated else Usage()
            self.send(Failed(at=self.now, attempt=attempt, failure=failure, usage=told_usage))
        else:
            self._answered(attempt)
            self.send(Stopped(at=self.now, attempt=attempt, result=Result(finish="cancelled", usage=usage)))

    def do_forget(self) -> None:
        """A worker loses an attempt without a word; what it generated before is real."""
        attempt = self.some_attempt()
        if attempt is not None and (self.machine.lease is not None or attempt in self.stopping):
            self.generate(attempt, self.rng.randint(0, 20))
            self.silent.add(attempt)

    def do_read(self) -> None:
        """A planner answers a result, or patches a step that still runs."""
        running = [node for node in self.machine.nodes.values() if node.step.expands and node.state is State.RUNNING]
        if self.readers and (not running or self.rng.random() < 0.6):
            chosen = self.readers[self.rng.randrange(len(self.readers))]
            closed = self.rng.random() < 0.6
            if closed:
                self.readers.remove(chosen)
            self.patch(chosen.step, chosen.attempt, closed=closed)
        elif running:
            node = self.rng.choice(running)
            self.patch(node.id, node.attempts.generation, closed=False)

    def patch(self, step: str, attempt: int, *, closed: bool) -> None:
        draw = self.rng.random()
        if draw < 0.05:
            self.send(Expanded(at=self.now, step=step, attempt=attempt, failure=fail_with(kind="PlannerError")))
            return
        node = self.machine.nodes.get(step)
        patch: Plan | None = None
        if draw < 0.8 and node is not None:
            inner = node.inner or Scope(node.run, node, node.scope, "")
            outer, around = seen_from(inner)
            named = inner.output is None and (closed or self.rng.random() < 0.2)
            taken = {name: has_context(each.step) for name, each in inner.names.items()}
            patch = random_plan(self.rng, taken, outer, around, whole=named)
        self.send(Expanded(at=self.now, step=step, attempt=attempt, patch=patch, closed=closed))

    def do_repeat(self) -> None:
        """Old news comes once more, as if it were new."""
        kinds = (Succeeded, Failed, Stopped, Expanded, Submitted, Cancelled)
        old = [event for event in self.events if isinstance(event, kinds)]
        if not old:
            return
        event = self.rng.choice(old[-12:])
        if isinstance(event, Cancelled) or (isinstance(event, Expanded) and self.rng.random() < 0.5):
            return
        self.send(replace(event, at=self.now))

    def do_nonsense(self) -> None:
        """News of what never was."""
        number = self.rng.choice([0, 10_000])
        before = self.machine.late
        events: list[Event] = [
            Succeeded(at=self.now, attempt=number, result=Result()),
            Failed(at=self.now, attempt=number, failure=fail_with(retryable=True)),
            Stopped(at=self.now, attempt=number),
            Progressed(at=self.now, attempt=number, tokens=5),
            Expanded(at=self.now, step="nobody:a", attempt=0, closed=True),
            Cancelled(at=self.now, run="nobody"),
            Pruned(at=self.now, step="nobody:a"),
            Paused(at=self.now, run="nobody"),
            Limited(at=self.now, run="nobody", budget=Budget(width=1)),
        ]
        actions = self.send(self.rng.choice(events))
        assert actions == []
        assert self.machine.late == before + 1

    def do_tick(self) -> None:
        if self.wake is not None and self.rng.random() < 0.7:
            self.tick()
        else:
            self.tick(self.now + self.rng.choice([0.0, 0.1, 1.0, 5.0]))

    def do_wait(self) -> None:
        """Time passes; what should have woken the machine comes late."""
        self.now += self.rng.choice([0.1, 1.0, 5.0])

    def do_up(self) -> None:
        serves: tuple[Kind, ...] = self.rng.choice([("think", "call"), ("think", "call"), ("think",), ("call",)])
        models: tuple[str, ...] = self.rng.choice([(), (), ("m",), ("m", "n")])
        self.up(self.rng.choice(WORKERS), self.rng.randint(1, 3), serves, models)

    def do_down(self) -> None:
        worker = self.rng.choice(WORKERS)
        for attempt in [number for number, each in self.jobs.items() if each.worker == worker]:
            if attempt not in self.silent:
                self.generate(attempt, self.rng.randint(0, 20))
            self.bury(attempt)
        self.down(worker, returning=self.rng.random() < 0.7)

    def bury(self, attempt: int) -> None:
        """An attempt dies with its worker. A machine that has heard of it expects one report more, and no budget knows
        of tokens beyond that."""
        record = self.machine.attempts.get(attempt)
        if record is None or record.node.account is None or not record.tokens:
            return
        unheard = max(0, self.generated[attempt] - record.tokens - record.largest)
        for account in (record.node.account, *record.node.account.around):
            self.spent[account] = self.spent.get(account, 0) - unheard

    def do_cancel(self) -> None:
        if self.machine.runs:
            self.cancel(self.rng.choice(list(self.machine.runs)))

    def do_prune(self) -> None:
        if self.machine.nodes:
            self.prune(self.rng.choice(list(self.machine.nodes)))

    def do_pause(self) -> None:
        """The user pauses a run, or lets one go on."""
        if self.machine.runs:
            run = self.rng.choice(list(self.machine.runs))
            self.pause(run, on=not self.machine.runs[run].paused or self.rng.random() < 0.2)

    def do_limit(self) -> None:
        """The user gives a run other limits."""
        if self.machine.runs:
            run = self.rng.choice(list(self.machine.runs))
            self.limit(run, **(random_budget(self.rng, 0.9) or Budget()).limits)

    MOVES = (
        ("do_submit", 8),
        ("do_progress", 10),
        ("do_answer", 30),
        ("do_forget", 2),
        ("do_read", 16),
        ("do_repeat", 5),
        ("do_nonsense", 1),
        ("do_tick", 8),
        ("do_wait", 3),
        ("do_up", 4),
        ("do_down", 2),
        ("do_cancel", 1),
        ("do_prune", 1),
        ("do_pause", 2),
        ("do_limit", 1),
    )

    def step(self) -> None:
        """Let one thing happen."""
        names, weights = zip(*self.MOVES, strict=True)
        getattr(self, self.rng.choices(names, weights)[0])()

    # -- the fair end

    def play_fair(self) -> None:
        """Workers come back and answer everything, planners close, pauses end, time passes: all must come to an end."""
        for worker in WORKERS:
            self.up(worker, 3)
        for run in list(self.machine.runs):
            self.pause(run, on=False)
        for _ in range(5_000):
            if not self.machine.runs and not self.jobs:
                break
            alive = [number for number in self.jobs if number not in self.silent]
            if alive:
                attempt = alive[0]
                told = attempt in self.stopping
                self.generate(attempt, 1)
                self._answered(attempt)
                result = Result(value="x", usage=Usage(completion=self.generated[attempt]))
                news: Event = Succeeded(at=self.now, attempt=attempt, result=result)
                if told:
                    news = Stopped(at=self.now, attempt=attempt, result=result)
                self.send(news)
            elif self.readers:
                chosen = self.readers.pop(0)
                self.send(Expanded(at=self.now, step=chosen.step, attempt=chosen.attempt, closed=True))
            else:
                self.tick()
        self.check_end()

    def check_end(self) -> None:
        machine = self.machine
        assert not machine.runs, f"{list(machine.runs)} never ended"
        assert not machine.nodes
        assert not machine.attempts
        assert sorted(self.finishes) == sorted(self.submitted), "not one Finish for each run"
        assert all(host.running == 0 for host in machine.workers.values())
        for account in self.accounts:
            assert (account.held_back.tokens, account.running) == (0, 0), account.owner
            assert account.tokens >= self.spent.get(account, 0), f"{account.owner} was charged too little"
