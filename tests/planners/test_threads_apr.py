"""The dialect `apr`: the join replaces the call, states are rebuilt from the trace, goals end siblings, claims are
verified."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from plait.core.errors import FieldError, TaskError
from plait.core.ops import ModelCall
from plait.core.result import Failure
from plait.planners.threads.threads.dialects import load
from plait.workers.scripted import Reply, Scripted
from tests.planners.test_threads_dialects import by_ending, ends, run
from tests.planners.token_worker import TokenWorker

PUZZLE = "25 6 3 4 -> 39"
ROOT = "Moving to Node #0\nCurrent State: 39:[25, 6, 3, 4], Operations: []"
SEARCH = """
Exploring Operation: 25+6=31, Resulting Numbers: [3, 4, 31]
Generated Node #0,0: 39:[3, 4, 31] Operation: 25+6=31
Exploring Operation: 25*6=150, Resulting Numbers: [3, 4, 150]
Generated Node #0,1: 39:[3, 4, 150] Operation: 25*6=150
Moving to Node #0,0
Current State: 39:[3, 4, 31], Operations: ['25+6=31']
Generated Node #0,0,2: 39:[4, 93] Operation: 31*3=93
"""
CALL = """<Calling Sub Searches>
<Start Sub Search 0 at level 1> Moving to Node #0,1
<Start Sub Search 1 at level 1> Moving to Node #0,0,2
<Start Sub Search 2 at level 1> Moving to Node #0,0
<End Calling Sub Searches>"""
CHILDREN = [
    "Moving to Node #0,1\nCurrent State: 39:[3, 4, 150], Operations: ['25*6=150']",
    "Moving to Node #0,0,2\nCurrent State: 39:[4, 93], Operations: ['25+6=31', '31*3=93']",
    "Moving to Node #0,0\nCurrent State: 39:[3, 4, 31], Operations: ['25+6=31']",
]
PATH = """Moving to Node #0,0
Current State: 39:[3, 4, 31], Operations: ['25+6=31']
Exploring Operation: 4*3=12, Resulting Numbers: [31, 12]
Generated Node #0,0,5: 39:[31, 12] Operation: 4*3=12
Moving to Node #0,0,5
Current State: 39:[31, 12], Operations: ['25+6=31', '4*3=12']
Exploring Operation: 31+12=43, Resulting Numbers: [43]
43,39 unequal: Goal Reached"""
RIGHT = "25+6=31", "3+4=7", "31+7=38"
GOAL = "\nlooking about\n43,39 equal: Goal Reached\n" + PATH + "\n"
NONE = "\nNo solution found.\n"
BLOCK = """<Sub Searches>
<No Solution in Sub Search 0 at level 1 at Node #0,1>
<No Solution in Sub Search 1 at level 1 at Node #0,0,2>
<Goal Reached in Sub Search 2 at level 1 at Node #0,0>
{path}
<End Sub Searches>
"""
LAST = "39,39 equal: Goal Reached\n" + PATH


def model(**changed: str | Failure):
    replies: dict[str, str | Failure] = {
        ROOT: SEARCH + CALL + " this is not generated",
        CHILDREN[0]: NONE,
        CHILDREN[1]: NONE,
        CHILDREN[2]: GOAL,
        "<End Sub Searches>\n": LAST,
    }
    return by_ending({**replies, **changed}, "?")


def test_the_join_stands_in_the_place_of_the_call_token_for_token() -> None:
    worker = TokenWorker(model())
    answer = run(worker, PUZZLE, dialect="apr")
    assert answer.status == "done"
    for number, state in enumerate(CHILDREN, 1):
        ends(worker, f"child-{number}", ("put", state))
    block = BLOCK.format(path=PATH)
    ends(worker, "round-2", ("put", ROOT), ("said", SEARCH), ("put", block))
    assert "Calling" not in worker.tokenizer.decode(worker.prompts["round-2"])


def test_a_call_that_begins_inside_a_token_is_cut_off_all_the_same() -> None:
    """`\\n<` is one token here: the line break before the call stays, and nothing of the call."""
    worker = TokenWorker(model())
    worker.tokenizer.said = worker.tokenizer.encode  # a model that writes as the tokenizer does
    run(worker, PUZZLE, dialect="apr")
    assert worker.tokenizer.decode(worker.prompts["round-2"]) == ROOT + SEARCH + BLOCK.format(path=PATH)


def test_it_is_the_same_without_token_ids() -> None:
    worker, other = TokenWorker(model()), TokenWorker(model(), ids=False)
    run(worker, PUZZLE, dialect="apr")
    run(other, PUZZLE, dialect="apr")
    texts = [{step: each.tokenizer.decode(ids) for step, ids in each.prompts.items()} for each in (worker, other)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "failed", [Failure(kind="EngineError", message="gone"), "", "eval('1') Goal Reached", GOAL[:40]]
)
def test_a_failed_search_reads_as_no_solution(failed: str | Failure) -> None:
    """Peers: one failed child kills the whole search."""
    worker = TokenWorker(model(**{CHILDREN[2]: failed}))
    answer = run(worker, PUZZLE, dialect="apr")
    assert answer.status == "done"
    assert "<No Solution in Sub Search 2 at level 1 at Node #0,0>\n<End" in worker.tokenizer.decode(
        worker.prompts["round-2"]
    )


def test_equal_calls_each_get_an_answer_in_order() -> None:
    """Peers: two children with the same prefix leave a hole that raises."""
    line = "<Start Sub Search {} at level 1> Moving to Node #0,0\n"
    call = "<Calling Sub Searches>\n" + line.format(0) + line.format(1) + "<End Calling Sub Searches>"
    answers = iter([NONE, GOAL])

    def said(context: str) -> str | Failure:
        return next(answers) if context == CHILDREN[2] else model(**{ROOT: SEARCH + call})(context)

    worker = TokenWorker(said)
    assert run(worker, PUZZLE, dialect="apr").status == "done"
    read = worker.tokenizer.decode(worker.prompts["round-2"])
    assert read.index("<No Solution in Sub Search 0") < read.index("<Goal Reached in Sub Search 1")


def test_a_node_that_the_trace_does_not_know_is_no_solution_and_no_thread() -> None:
    call = CALL.replace("#0,1\n", "#0,9,9\n").replace("#0,0,2\n", "#__import__('os')\n")
    worker = TokenWorker(model(**{ROOT: SEARCH + call}))
    assert run(worker, PUZZLE, dialect="apr").status == "done"
    assert [name for name in worker.prompts if name.startswith("child")] == ["child-2"]
    assert worker.tokenizer.decode(worker.prompts["round-2"]).endswith(
        "<Sub Searches>\n<No Solution in Sub Search 0 at level 1 at Node #0,9,9>\n"
        f"<Goal Reached in Sub Search 1 at level 1 at Node #0,0>\n{PATH}\n<End Sub Searches>\n"
    )


def test_nodes_are_remembered_from_earlier_rounds_and_joins() -> None:
    call = (
        "then <Calling Sub Searches>\n<Start Sub Search 0 at level 1> Moving to Node #0,0,5\n<End Calling Sub Searches>"
    )
    replies = {
        BLOCK.format(path=PATH): call,
        "#0,0,5\nCurrent State: 39:[31, 12], Operations: ['25+6=31', '4*3=12']": NONE,
    }
    worker = TokenWorker(model(**replies, **{"#0,0,5>\n<End Sub Searches>\n": "No solution found."}))
    answer = run(worker, PUZZLE, dialect="apr")
    assert answer.value == "No solution found."
    ends(
        worker, "round-3", ("put", ROOT), ("said", SEARCH), ("put", BLOCK.format(path=PATH)), ("said", "then "),
        ("put", "<Sub Searches>\n<No Solution in Sub Search 0 at level 1 at Node #0,0,5>\n<End Sub Searches>\n"),
    )  # fmt: skip


def test_an_answer_that_the_parent_may_not_write_becomes_a_call() -> None:
    """The parent writes `<Sub Searches>` itself: `<Calling Sub Searches>` is put there, and it goes on to the list."""
    wrong = SEARCH + "<Sub Searches>\n<Goal Reached, really>"
    worker = TokenWorker(model(**{ROOT: wrong, "<Calling Sub Searches>": CALL.removeprefix("<Calling Sub Searches>")}))
    assert run(worker, PUZZLE, dialect="apr").status == "done"
    ends(worker, "round-2", ("put", ROOT), ("said", SEARCH), ("put", "<Calling Sub Searches>"))
    ends(worker, "child-1", ("put", CHILDREN[0]))
    ends(worker, "round-3", ("put", ROOT), ("said", SEARCH), ("put", BLOCK.format(path=PATH)))


def test_corrections_and_rounds_end() -> None:
    """Peers: unlimited rounds, unlimited corrections."""
    worker = TokenWorker(lambda context: "and <Sub Searches>")
    answer = run(worker, PUZZLE, dialect="apr")
    assert answer.status == "done" and len(worker.jobs) == 33
    worker = TokenWorker(lambda context: SEARCH + CALL if "Sub" not in context[-30:] else CALL)
    answer = run(worker, PUZZLE, dialect="apr", rounds=4)
    assert answer.status == "done" and sum("child" not in job.step.rpartition("/")[2] for job in worker.jobs) == 5


def test_the_first_goal_ends_the_other_searches_and_is_verified() -> None:
    path = """Moving to Node #0,0
Current State: 39:[3, 4, 31], Operations: ['25+6=31']
Exploring Operation: 3+4=7, Resulting Numbers: [31, 7]
Generated Node #0,0,1: 38:[31, 7] Operation: 3+4=7
Moving to Node #0,0,1
Current State: 38:[31, 7], Operations: ['25+6=31', '3+4=7']
Exploring Operation: 31+7=38, Resulting Numbers: [38]
38,38 equal: Goal Reached"""
    said = {
        key.replace("39:", "38:"): value
        for key, value in ((CHILDREN[2], "\nGoal Reached\n" + path), (ROOT, SEARCH.replace("39:", "38:") + CALL))
    }
    others = {child.replace("39:", "38:"): NONE for child in CHILDREN[:2]}
    worker = TokenWorker(by_ending({**said, **others}, "?"))
    answer = run(worker, "25 6 3 4 -> 38", "countdown", dialect="apr")
    assert answer.verified is True and answer.answer == list(RIGHT)
    assert "round-2" not in worker.prompts, "the claim settles it"


def test_a_wrong_claim_is_no_solution() -> None:
    worker = TokenWorker(model())
    answer = run(worker, PUZZLE, "countdown", dialect="apr")
    assert answer.verified is not True
    assert "No Solution in Sub Search 2" in worker.tokenizer.decode(worker.prompts["round-2"])


def test_the_parents_own_path_is_the_answer() -> None:
    path = "Current State: 38:[31, 7], Operations: ['25+6=31', '3+4=7']\nExploring Operation: 31+7=38\nGoal Reached"
    worker = TokenWorker(lambda context: f"\n38,38 equal: Goal Reached\n{path}\n")
    answer = run(worker, "25 6 3 4 -> 38", "countdown", dialect="apr")
    assert answer.answer == list(RIGHT) and answer.verified is True
    once = TokenWorker(lambda context: f"\n{path}\n")
    assert run(once, "25 6 3 4 -> 38", "countdown", dialect="apr").answer is None, "success wants it written down twice"


@pytest.mark.parametrize(("root", "child"), [("Sub Call Budget: 3 ", ""), ("Token Budget: 3 ", "Token Budget: 3 ")])
def test_budgets_in_the_prompt(root: str, child: str) -> None:
    worker = TokenWorker(model())
    options: dict[str, Any] = {"answer": {"template": root + "{opening}"}, "part": {"template": child + "{header}"}}
    run(worker, PUZZLE, dialect="apr", **options)
    ends(worker, "round-1", ("put", root + ROOT))
    ends(worker, "child-1", ("put", child + CHILDREN[0]))


def test_stops_and_prompt() -> None:
    worker = TokenWorker(model())
    run(worker, PUZZLE, dialect="apr")
    first = worker.jobs[0].op
    assert isinstance(first, ModelCall) and not first.chat
    assert first.sampling.stop == ("<End Calling Sub Searches>", "<Sub Searches>")
    with pytest.raises(TaskError, match="25 36 49 51 -> 39"):
        run(TokenWorker(model()), "What is 6*7?", dialect="apr")


def test_before_says_how_far_a_continued_context_counts() -> None:
    with pytest.raises(FieldError, match="give `after` too"):
        ModelCall(prompt="x", before="<call>")


def test_the_first_goal_cancels_its_siblings() -> None:
    """Peers: all searches are waited for. Here the others would take an hour."""
    replies = [
        Reply(when=r"<End Sub Searches>\n\Z", text=LAST),
        Reply(when=r"Node #0,0\n(?-s:.)*\Z", text=GOAL),
        Reply(when=r"Node #0,(1|0,2)\n(?-s:.)*\Z", text=NONE, delay=3600),
        Reply(text=SEARCH + CALL),
    ]
    answer = run(Scripted(replies), PUZZLE, dialect="apr")
    states = {row.name: row.state for row in answer.report.steps}
    assert answer.status == "done" and states["child-3"] == "done"
    assert states["child-1"] == states["child-2"] == "cancelled"


PARTS = st.sampled_from([
    *SEARCH.splitlines(keepends=True), *CALL.splitlines(keepends=True),
    "Moving to Node #0,0,0,0\n", "Operation: 1+1=2\n",
    "Goal Reached", "Generated Node #9,9: 1:[1] Operation: 1/0=9999999999999\n", "__import__('os')", "$(rm -rf)",
    "Current State: 1:[" + "1, " * 300 + "1], Operations: []\n", "#" + "1," * 5000, "\n" * 50,
])  # fmt: skip


@given(st.lists(PARTS, max_size=30).map("".join))
def test_nothing_that_a_search_writes_breaks_the_table(text: str) -> None:
    table = load("apr")
    notes = table.remember(table.remember("", ROOT), text)
    for item in table.items(text + "<End Calling Sub Searches>", ROOT, 10, notes):
        assert item.header is None or item.header.startswith(f"Moving to Node #{item.echo}\nCurrent State: ")
    assert table.remember(notes, "") == notes
