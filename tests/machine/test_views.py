"""What policies see of contexts, siblings, workers and times."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from plait.core.chat import Message
from plait.core.events import Event, Progressed, WorkerUp
from plait.core.interfaces import Policy, ReviewAt
from plait.core.ops import ModelCall, Ref, Text, ToolCall
from plait.core.plan import Step
from plait.core.request import Retries
from plait.core.task import Task
from plait.core.view import AttemptEnd, Branch
from plait.machine.records import Node
from plait.machine.views import MachineView, NodeView, branch_of, branches_of
from tests.machine.kit import Collect, World, call, fail_with, join, think


class Quiet(Policy):
    """No opinion: the machine keeps books for it all the same."""

    def place(self, step: NodeView, view: MachineView) -> None:
        return None


def world_of(**options) -> World:
    return World(policies={"quiet": Quiet()}, **options)


def view(world: World) -> MachineView:
    return world.machine.view()


def step(world: World, name: str) -> NodeView:
    found = view(world).step(world.id(name))
    assert found is not None
    return found


def names(steps: object) -> list[str]:
    return [each.plan.name for each in steps]  # type: ignore[attr-defined]


def test_siblings_continue_the_same_context_or_begin_with_the_same_prompt() -> None:
    world = world_of()
    world.submit(
        think("a1", prompt="same"), think("a2", prompt="same"), think("b", prompt="other"),
        think("c1", after="a1"), think("c2", after="a1", prompt="else"), think("c3", after="a2"),
        think("m", prompt="same", model="m"), call("t1"), call("t2"),
        think("r", "t1", prompt=[Text(text="same"), Ref(step="t1")]),
        join("j", "a1", "a2", "b", "c1", "c2", "c3", "m", "t1", "t2", "r"),
        policies=["quiet"],
    )  # fmt: skip
    kin = {name: names(step(world, name).siblings) for name in ("a1", "b", "c1", "c3", "m", "t2", "r")}
    assert kin == {
        "a1": ["a1", "a2"], "b": ["b"], "c1": ["c1", "c2"], "c3": ["c3"], "m": ["m"], "t2": ["t1", "t2"], "r": ["r"],
    }  # fmt: skip
    assert len(step(world, "j").siblings) == 0


def talk(name: str, *messages: str, prompt: str = "") -> Step:
    said = tuple(Message(role="user" if i % 2 == 0 else "assistant", content=text) for i, text in enumerate(messages))
    parts = (Text(text=prompt),) if prompt else ()
    return Step(name=name, op=ModelCall(prompt=parts, messages=said, chat=True))


def test_conversations_are_siblings_only_where_their_messages_are_the_same() -> None:
    """The same last question after other messages is another prompt, and the same messages without one are one."""
    world = world_of()
    steps = (
        talk("a1", "Hi", "Hello", prompt="Why?"), talk("a2", "Hi", "Hello", prompt="Why?"),
        talk("b", "Hi", "Go away", prompt="Why?"), talk("c1", "Hi " * 40), talk("c2", "Hi " * 40),
    )  # fmt: skip
    world.submit(*steps, join("j", *(each.name for each in steps)), policies=["quiet"])
    assert [names(step(world, each.name).siblings) for each in steps] == [
        ["a1", "a2"], ["a1", "a2"], ["b"], ["c1", "c2"], ["c1", "c2"]
    ]  # fmt: skip
    long = step(world, "c1")
    assert long.prompt_tokens == long.shared_tokens > 120 // 4  # the messages are part of what has to be read


def test_each_message_of_a_conversation_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step of a conversation has all messages before it, and is asked about often."""
    written: list[str] = []
    write = Message.model_dump_json
    monkeypatch.setattr(Message, "model_dump_json", lambda self: written.append(self.content) or write(self))
    messages = tuple(Message(role="user" if i % 2 == 0 else "assistant", content=f"m{i}") for i in range(20))
    turns = range(2, len(messages) + 1, 2)
    ops = [ModelCall(prompt=(Text(text="Why?"),), messages=messages[:turn], chat=True) for turn in turns]
    world = world_of(slots=3)
    steps = tuple(Step(name=f"turn-{i}", op=op) for i, op in enumerate(ops))
    world.submit(*steps, join("j", *(each.name for each in steps)), policies=["quiet"])
    for each in steps:
        found = step(world, each.name)
        assert found.shared_tokens <= found.prompt_tokens
        view(world).cached(found)
    assert sorted(written) == sorted(each.text for each in messages)


def test_without_policies_no_books_are_kept() -> None:
    world = World()
    world.submit(think("a1"), think("a2"), join("j", "a1", "a2"))
    assert names(step(world, "a1").siblings) == []
    assert step(world, "a1").siblings.sent == {}


def test_siblings_tell_where_they_were_sent_and_how_they_ended() -> None:
    world = world_of(slots=2)
    world.up("v", 1)
    world.submit(*(think(f"a{i}") for i in range(4)), join("j", *(f"a{i}" for i in range(4))), policies=["quiet"])
    siblings = step(world, "a0").siblings
    assert (dict(siblings.sent), dict(siblings.live)) == ({"v": 1, "w": 2}, {"v": 1, "w": 2})
    world.now = 3.0
    world.succeed("a0", tokens=7)
    assert view(world).peers(step(world, "a1")) == (AttemptEnd(3.0, 7, "v"),)
    assert (dict(siblings.sent), dict(siblings.live)) == ({"v": 2, "w": 2}, {"v": 1, "w": 2})
    assert step(world, "a0").ran_on == "v"


def test_a_steps_home_is_where_the_context_that_it_continues_ran() -> None:
    world = world_of(slots=1)
    world.up("v", 1)
    world.submit(
        think("e", expands=True), think("z", after="e"), think("busy"), join("j", "z", "busy"), policies=["quiet"]
    )
    assert step(world, "z").home == "v"
    world.succeed("e")
    world.expand("e", think("x", after="e"))
    assert step(world, "e/x").home == "v"
    world.succeed("busy")
    assert step(world, "z").home == world.jobs[world.attempt("e/x")].worker, "where the expansion's own output runs"
    assert step(world, "e").home is None


def test_sizes_are_counted_where_ids_are_known_and_estimated_elsewhere() -> None:
    world = world_of()
    world.submit(
        think("a", prompt="x" * 40, tokens=30), think("b", after="a", prompt="y" * 8, tokens=5), policies=["quiet"]
    )
    a, b = step(world, "a"), step(world, "b")
    assert (a.prompt_tokens, a.shared_tokens, a.max_tokens) == (10, 10, 30)
    assert (b.prompt_tokens, b.shared_tokens) == (10 + 30 + 2, 10 + 30)
    world.succeed("a", "t", prompt_ids=range(12), token_ids=range(4))
    assert (b.prompt_tokens, b.shared_tokens) == (12 + 4 + 2, 12 + 4)


def test_workers_tell_their_load_and_the_context_that_their_attempts_may_hold() -> None:
    world = world_of(slots=0)
    world.send(WorkerUp(at=0.0, worker="w", slots=4, serves=("think",), cache_tokens=1_000, block=16))
    world.submit(
        think("a1", prompt="x" * 400, tokens=30), think("a2", prompt="x" * 400, tokens=30), think("b", tokens=7),
        join("j", "a1", "a2", "b"), policies=["quiet"],
    )  # fmt: skip
    worker = view(world).worker("w")
    assert worker is not None
    assert (worker.cache_tokens, worker.block) == (1_000, 16)
    assert (worker.load, worker.context) == (67, 100 + 2 * 30 + 1 + 7)
    world.progress("a1", tokens=10)
    assert (worker.load, worker.context) == (57, 168)
    world.succeed("a1", tokens=12)
    assert (worker.load, worker.context, worker.running, worker.free) == (37, 138, 2, 2)
    world.succeed("a2", tokens=12)
    assert (worker.load, worker.context) == (7, 8)
    assert view(world).worker("nobody") is None


def test_confidence_is_seen_while_a_step_runs() -> None:
    world = world_of()
    world.submit(think("a"), policies=["quiet"])
    attempt = world.attempt("a")
    world.send(Progressed(at=1.0, attempt=attempt, tokens=1, group=3.5, lowest=2.5))
    world.send(Progressed(at=1.0, attempt=attempt, tokens=1))
    assert (step(world, "a").group, step(world, "a").lowest, step(world, "a").started) == (3.5, 2.5, 0.0)


def test_a_step_tells_what_became_of_it() -> None:
    world = world_of()
    world.submit(think("a"), policies=["quiet"])
    before = len(step(world, "a").story)
    world.fail("a", fail_with("it broke", retryable=True))
    story = step(world, "a").story
    assert len(story) > before and any("it broke" in line for line in story)


def test_a_policy_may_look_at_its_run_before_there_is_any_news() -> None:
    seen: list[tuple[str, str, object]] = []

    class Note(Policy):
        def review(self, event: Event, view: MachineView) -> Sequence[ReviewAt]:
            seen.append((event.kind, view.run, view.subject))
            return ()

        def first_look(self) -> float:
            return 2.0

    world = World(policies={"note": Note()})
    world.submit(think("a"), policies=["note"])
    assert world.wake == 2.0
    world.tick()
    assert seen == [("tick", "r", None)]


def test_what_a_merge_is_shown_is_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(slots=3)
    names = ("a", "b", "c", "d")
    steps = (think(name, stream=True) for name in names)
    world.submit(*steps, join("j", *names, merge="vote", early=True), retries=Retries(think=1, backoff=1.0))
    node = world.node("j")
    first = branches_of(node)

    def shown() -> list[tuple[str, str, int]]:
        assert branches_of(node) == [branch_of(dep) for dep in node.deps]
        return [(each.state.value, each.text, each.tokens) for each in branches_of(node)]

    def again(what: object) -> list[tuple[str, str, int]]:
        assert what is not None
        return shown()

    assert again(world.progress("a", "x", 3))[0] == ("running", "x", 3)
    assert again(world.progress("a", "y", 2))[0] == ("running", "xy", 5)
    assert again(world.fail("b", fail_with(retryable=True)))[1] == ("waiting", "", 0)
    assert [each.state.value for each in first] == ["running", "running", "running", "ready"], "a copy, once given out"
    assert again(world.tick(world.now + 1.0))[1][0] == "ready"
    assert again(world.succeed("c", "z", tokens=7))[1:3] == [("running", "", 0), ("done", "z", 7)]
    assert again(world.prune("d"))[3][0] == "cancelled"
    looked: list[str] = []
    world.checked = False  # the check looks too

    def counted(dep: Node) -> Branch:
        looked.append(dep.step.name)
        return branch_of(dep)

    monkeypatch.setattr("plait.machine.views.branch_of", counted)
    world.progress("a", "!", 1)
    assert branches_of(node)[0].text == "xy!"
    assert looked == ["a"], "what stands still is not looked at again"


def test_only_a_join_that_is_open_can_be_decided() -> None:
    world = world_of()
    vote = join("j", "a", "b", "c", "d", merge="vote")
    world.submit(think("a"), think("b"), think("c"), think("d", "c"), vote, think("end", "j"))
    assert not step(world, "j").decided() and not step(world, "d").decided(), "nothing has arrived; no join"
    for name in ("a", "b", "c"):
        world.succeed(name, "x")
    assert step(world, "j").decided()
    world.succeed("d", "x")
    assert not step(world, "j").decided(), "it has its verdict"


def test_what_continues_a_step_whose_expansion_runs_has_the_context_of_that() -> None:
    world = world_of()
    world.submit(
        think("e", prompt="y" * 4, tokens=9, expands=True), think("z", after="e", prompt="z" * 8), policies=["quiet"]
    )
    world.succeed("e", "t", prompt_ids=range(3), token_ids=range(2))
    world.expand("e", think("x", prompt="x" * 400, tokens=30))
    assert step(world, "z").shared_tokens == 100 + 30
    assert step(world, "z").prompt_tokens == 100 + 30 + 2


@pytest.mark.parametrize(("slots", "could"), [(0, False), (1, True)])
def test_a_worker_with_one_slot_could_take_a_step_and_one_that_is_going_could_not(slots: int, could: bool) -> None:
    world = world_of(slots=1)
    world.submit(think("a"), think("b"), join("j", "a", "b"), policies=["quiet"])
    world.up("w", slots)
    worker = view(world).worker("w")
    assert worker is not None
    assert (worker.could_take(step(world, "b")), worker.takes(step(world, "b"))) == (could, False)


def test_calls_of_one_tool_are_siblings_and_those_of_another_are_not() -> None:
    world = world_of(slots=1)
    other = Step(name="c", op=ToolCall(tool="g"))
    world.submit(call("a"), call("b"), other, join("j", "a", "b", "c"), policies=["quiet"])
    assert [names(step(world, name).siblings) for name in ("a", "c")] == [["a", "b"], ["c"]]


def test_records_of_a_run_that_is_dissolved_hold_one_another_no_more() -> None:
    world = world_of()
    world.submit(think("a"), think("b", "a"))
    run, known = world.node("a").run, world.node("a").scope.names
    world.succeed("a")
    world.succeed("b")
    run.dissolve()
    assert not known and not run.nodes


def test_a_merge_that_keeps_a_tally_is_asked_no_more_than_that() -> None:
    asked: list[str] = []

    class Told:
        def ended(self, branch: Branch) -> None:
            asked.append(branch.name)

        def decided(self, outstanding: int) -> bool:
            return len(asked) >= 2

    class Tallied(Collect):
        def tally(self, task: Task) -> Told:
            return Told()

    class Decided(Tallied):
        """Its own `decided` goes before the tally that it inherits."""

        def decided(self, branches: Sequence[Branch], outstanding: int, task: Task) -> bool:
            return False

    world = World(slots=3, merges={"tallied": Tallied(), "decided": Decided()})
    for run in ("tallied", "decided"):
        world.submit(think("a"), think("b"), think("c"), join("j", "a", "b", "c", merge=run, early=True), run=run)
        for name in ("a", "b"):
            world.succeed(f"{run}:{name}")
    assert asked == ["a", "b"]
    assert world.states("tallied:j", "decided:j") == ["done", "waiting"]
