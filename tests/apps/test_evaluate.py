"""`plait eval`: what is counted, what is written, what is refused."""

from __future__ import annotations

import itertools
import json
import sys
from collections import Counter

import pytest

from plait.apps.commands.eval import compared
from plait.apps.common.dataset import read_questions
from plait.apps.common.intervals import exact_share, paired_difference, wilson
from plait.apps.common.sample_curves import SamplePool
from plait.core.errors import ConfigError
from plait.core.ops import Plugin
from plait_bench.countdown import CountdownProblem, _reach, draw, is_held_out, is_right
from plait_bench.tasks.countdown import Countdown

LINES = ['{"numbers": [3, 5, 7, 11], "target": 26}', '{"numbers": [1, 2, 3, 4], "target": 24}', ""]


def is_solvable(problem: CountdownProblem) -> bool:
    """Whether the target can be reached with all numbers, exact division and intermediates of 1..127."""
    return problem.target in _reach(tuple(sorted(problem.numbers)))


@pytest.fixture
def problems(tmp_path):
    path = tmp_path / "problems.jsonl"
    path.write_text("\n".join([*LINES, '{"numbers": [1, 2, 3, 4], "target": 25}']))
    return path


@pytest.fixture
def solver(script):
    return script(
        {"when": "T26", "text": "<hit> 11 + 7 = 18 ; 18 + 5 = 23 ; 23 + 3 = 26 <end>"},
        {"when": "T24", "text": "<hit> 4 * 3 = 12 ; 12 * 2 = 24 ; 24 + 1 = 24 <end>"},
        "<none> <end>",
    )


def test_counts_and_answers(plait, problems, solver, tmp_path):
    done = plait("eval", problems, "--task", "countdown", "--script", solver, "--out", "out.jsonl", "--json")
    assert done.code == 0
    said = done.json
    assert (said["n"], said["solved"], said["claimed"], said["failed"]) == (3, 1, 2, 0)
    assert said["solved_percent"] == pytest.approx(33.33)
    assert said["status"] == "done"
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [record["text"][-2:] for record in records] == ["26", "24", "25"]
    assert [record["solved"] for record in records] == [True, False, False]
    assert [record["answer"] is None for record in records] == [False, False, True]
    assert records[0]["answer"] == ["11+7=18", "18+5=23", "23+3=26"]
    totals = [record["total_tokens"] for record in records]
    assert said["total_tokens_mean"] == pytest.approx(sum(totals) / 3, abs=0.01)
    assert said["critical_path_tokens_mean"] == said["total_tokens_mean"]  # one line of reasoning


def test_solved_is_checked_beside_the_planners_merge(plait, problems, solver):
    done = plait("eval", problems, "--task", "countdown", "--script", solver, "--planner", "sample:n=3", "--json")
    assert (done.json["solved"], done.json["claimed"]) == (1, 2)  # the majority agrees on a wrong one
    done = plait(
        "eval", problems, "--task", "countdown", "--script", solver,
        "--planner", "sample", "--n", 3, "--merge", "best-of", "--json",
    )  # fmt: skip
    assert (done.json["solved"], done.json["claimed"]) == (1, 1)  # the verifier lets no wrong one through


def test_limit_and_the_table(plait, problems, solver):
    done = plait("eval", problems, "--task", "countdown", "--script", solver, "--limit", 1)
    assert done.code == 0
    assert "1 of 1 countdown problems" in done.out
    assert "1 (100.0 %" in done.out
    assert "1 of 1: 1 solved" in done.err


def test_bad_lines_are_named_and_nothing_is_run(plait, tmp_path, script):
    bad = ["nonsense", '{"numbers": [1, 2, 3], "target": 24}', '{"numbers": [1, 2, 3, 4], "target": true}', "[1]"]
    (tmp_path / "bad.jsonl").write_text("\n".join([LINES[0], *bad]))
    counted = script("unused")
    done = plait("eval", "bad.jsonl", "--task", "countdown", "--script", counted, "--out", "o.jsonl", "--json")
    assert done.code == 2
    for numbers in ("2", "3", "4, 5"):
        assert f"line {numbers}: " in done.json["error"]
    assert "line 1:" not in done.json["error"]
    assert not (tmp_path / "o.jsonl").exists()


def test_answers_that_cannot_be_written_are_refused_first(plait, problems, solver):
    done = plait("eval", problems, "--task", "countdown", "--script", solver, "--out", "no/where.jsonl", "--json")
    assert done.code == 2
    assert "no/where.jsonl" in done.json["error"]


def test_an_engine_that_fails_every_time_is_an_error(plait, problems, script):
    broken = script({"text": "no memory", "finish": "error"})
    done = plait("eval", problems, "--task", "countdown", "--script", broken, "--json")
    assert done.code == 1
    assert done.json["failed"] == done.json["n"] == 3
    assert "no memory" in done.err


def test_drawn_problems_are_held_out_solvable_and_the_same_for_a_seed():
    problems = draw(40, seed=7)
    assert problems == draw(40, seed=7) != draw(40, seed=8)
    assert len({(tuple(sorted(problem.numbers)), problem.target) for problem in problems}) == 40
    for problem in problems:
        assert is_held_out(problem.numbers)
        assert is_solvable(problem)
        assert all(1 <= number <= 25 for number in problem.numbers)
        assert 10 <= problem.target <= 100


def test_solvable_is_exact():
    assert is_solvable(CountdownProblem((3, 5, 7, 11), 24))
    assert not is_solvable(CountdownProblem((1, 1, 1, 1), 10))
    assert not is_solvable(CountdownProblem((25, 25, 25, 25), 11))


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        (["11-7=4", "5-3=2", "4*2=8"], False),
        (["11+7=18", "18+5=23", "23+3=26"], True),
        (["11 + 7 = 18", "18+5=23", "23+3=26"], True),
        (["11+7=18", "18+5=23"], False),
        (["11+7=18", "18+5=23", "23+3=26", "26+0=26"], False),
        (["11+7=19", "19+5=24", "24+3=27"], False),
        (["11+11=22", "22+3=25", "25+1=26"], False),
        (["13+13=26", "3+5=8", "7+11=18"], False),
        (["11/7=1", "1+5=6", "6+3=9"], False),
        ([1, 2, 3], False),
        ("11+7=18;18+5=23;23+3=26", False),
        (None, False),
    ],
)
def test_the_check_is_exact(answer, right):
    problem = CountdownProblem((3, 5, 7, 11), 26)
    assert is_right(problem, answer) is right
    assert Countdown(text=problem.text).verify(answer) is right


def test_an_empty_file_has_no_problems(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(ConfigError, match="no problems"):
        read_questions(tmp_path / "empty.jsonl", Plugin(name="countdown"))


def test_wilson_interval():
    # 95 % of 50 in 100 is the textbook's 40.4 to 59.6.
    assert wilson(50, 100) == pytest.approx((0.404, 0.596), abs=1e-3)
    assert wilson(0, 0) == (0.0, 1.0)
    low, high = wilson(10, 10)
    assert (low, high) == (pytest.approx(0.7225, abs=1e-3), 1.0)


def test_how_much_ran_side_by_side_is_counted(plait, problems, script, tmp_path):
    spawn = "<spawn> 11 + 7 = 18 | 5 3 ; 11 - 7 = 4 | 5 3 <wait>"
    replies = script(
        {"when": "<join>", "text": "<none> <end>"},
        {"when": "<child>", "text": "<none> <end>"},
        {"when": "T26", "text": spawn},
        "<none> <end>",
    )
    done = plait(
        "eval", problems, "--task", "countdown", "--planner", "threads", "--script", replies, "--json", "--out",
        "out.jsonl",
    )  # fmt: skip
    assert done.json["activated_share"] == pytest.approx(1 / 3, abs=1e-4) and done.json["warnings"] == []
    figures = [json.loads(line)["parallelism"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [each["activated"] for each in figures] == [True, False, False]
    mean = sum(each["acceleration"] for each in figures) / 3
    assert done.json["acceleration_mean"] == pytest.approx(mean, abs=1e-3) and mean > 0
    assert (
        "in 33.3 % of the problems"
        in plait("eval", problems, "--task", "countdown", "--planner", "threads", "--script", replies).out
    )


# --- own data, own tasks ---

OWN_TASK = """
from plait import Task

class Shout(Task):
    mark: str = "!"

    def render(self, style="serial", width=8):
        return self.text

    def extract(self, text):
        return text.strip().rstrip(self.mark) or None

    def key(self, answer):
        return answer.casefold()

class Judge(Shout):
    def verify(self, answer):
        return answer == "yes"

class Half(Task):
    def render(self, style="serial", width=8):
        return self.text
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "shouting_tasks.py").write_text(OWN_TASK)
    yield "folder/shouting_tasks.py"
    sys.modules.pop("shouting_tasks", None)


def test_own_questions_with_a_task_by_name(plait, tmp_path, script):
    (tmp_path / "q.jsonl").write_text(
        '{"question": "6 times 7?", "label": "42", "page": 1}\n\n{"question": "2 + 2?", "label": "5"}\n'
    )
    replies = script({"when": "times", "text": "answer: 42.0"}, {"when": "2 +", "text": "answer: 4"})
    words = ["eval", "q.jsonl", "--task", "plain:equal=number", "--text", "question", "--want", "label"]
    done = plait(*words, "--script", replies, "--out", "out.jsonl", "--json")
    assert done.code == 0, done.err
    assert (done.json["n"], done.json["solved"], done.json["claimed"]) == (2, 1, 2)
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(each["text"], each["want"], each["solved"]) for each in records] == [
        ("6 times 7?", "42", True), ("2 + 2?", "5", False),
    ]  # fmt: skip
    assert (tmp_path / "out.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_task_in_a_file_and_questions_in_csv(plait, tmp_path, script, own):
    (tmp_path / "q.csv").write_text('text,want\n"one, two",YES\nthree,no\n')
    done = plait("eval", "q.csv", "--task", f"{own}:Shout:mark=?", "--script", script("yes??"), "--json")
    assert done.code == 0, done.err
    assert (done.json["n"], done.json["solved"]) == (2, 1)
    (tmp_path / "bare.csv").write_text("text\none\ntwo\n")
    done = plait("eval", "bare.csv", "--task", f"{own}:Judge", "--script", script("yes!"), "--json")
    assert (done.json["n"], done.json["solved"]) == (2, 2), "the task verifies"
    done = plait("run", "one", "--task", f"{own}:Shout", "--script", script("yes!"), "--json")
    assert done.json["answer"] == "yes"


def test_what_cannot_be_evaluated_is_said_before_anything_is_run(plait, tmp_path, script, own):
    (tmp_path / "q.jsonl").write_text('{"text": "one"}\nnonsense\n{"question": "two"}\n')
    (tmp_path / "q.csv").write_text("text,want\none, two and three,4\n")
    for words, said in (
        (["eval", "plain"], "give a file of them, `plait eval FILE --task plain`"),
        (["eval", "none.jsonl", "--task", "plain"], "there is no file none.jsonl"),
        (
            ["eval", "q.jsonl", "--task", "plain"],
            "the column with the right answers cannot be determined (the columns are text, question)",
        ),
        (["eval", "q.jsonl", "--task", f"{own}:Judge"], "line 2: not JSON (Expecting value); write {"),
        (["eval", "q.jsonl", "--task", f"{own}:Judge"], "line 3: has no text in the field 'text'"),
        (["eval", "q.csv", "--task", f"{own}:Judge"], "line 2: more cells than there are columns"),
        (["eval", "q.jsonl", "--task", f"{own}:Half"], "lacks extract, key"),
        (["eval", "q.jsonl", "--task", f"{own}:Nope"], "there is no 'Nope'"),
        (["eval", "q.jsonl", "--task", "folder/nothing.py:Class"], "there is no file folder/nothing.py"),
    ):
        done = plait(*words, "--script", script("unused"))
        assert done.code == 2, words
        assert said in done.err, (words, done.err)


def test_a_file_with_another_modules_name_is_refused(plait, tmp_path, script):
    (tmp_path / "json.py").write_text("1 / 0")
    done = plait("run", "q", "--task", "json.py:Class", "--script", script("x"))
    assert done.code == 2 and "rename the file" in done.err


def test_several_planners_are_compared_problem_by_problem(plait, problems, solver, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")  # the table names its rows on a narrow screen too
    given = ["eval", problems, "--task", "countdown", "--script", solver]
    both = ["--planner", "single", "--planner", "sample:n=3"]
    done = plait(*given, *both, "--out", "both.jsonl", "--json")
    assert done.code == 0
    first, second = done.json["compared"]
    assert (first["name"], second["name"], first["n"]) == ("single", "sample:n=3", 3)
    assert first["difference"] is None and second["difference"] == pytest.approx([0.0, -0.6316, 0.6316], abs=1e-4)
    assert second["tokens_ratio"] == pytest.approx(3.0)
    assert [each["planner"] for each in done.json["planners"]] == ["single", "sample:n=3"]
    table = plait(*given, *both)
    assert "sample:n=3" in table.out and "+0.0 (-63.2 to +63.2)" in table.out and "-200%" in table.out
    again = plait("eval", "both.jsonl", "--plot", "plot.png", "--json")
    assert again.json["compared"] == done.json["compared"]
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_files_of_one_name_and_equal_problems_stay_apart(plait, tmp_path):
    line = {"text": "a", "solved": True, "total_tokens": 1, "critical_path_tokens": 1, "seconds": 1}
    for folder, solved in (("a", [True] * 9 + [False]), ("b", [False] * 10)):
        (tmp_path / folder).mkdir()
        lines = "".join(json.dumps({**line, "solved": each}) + "\n" for each in solved)
        (tmp_path / folder / "r.jsonl").write_text(lines)
    done = plait("eval", "a/r.jsonl", "b/r.jsonl", "--json")
    assert [(each["name"], each["n"], each["solved"]) for each in done.json["compared"]] == [
        ("r", 10, 0.9), ("r (b/r.jsonl)", 10, 0.0),
    ]  # fmt: skip


def test_runs_that_differ_in_more_than_the_planner_are_told(plait, problems, solver, tmp_path):
    for name, seed in (("a", 1), ("b", 2)):
        given = ["eval", problems, "--task", "countdown", "--script", solver, "--seed", seed]
        assert plait(*given, "--out", f"{name}.jsonl").code == 0
    done = plait("eval", "a.jsonl", "b.jsonl")
    assert done.code == 0 and "request.seed is 1 there and 2 here" in done.err
    lines = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    lines[0]["made_of"]["request"]["task"]["name"] = "sums"
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    refused = plait("eval", "a.jsonl", "c.jsonl")
    assert refused.code == 2 and "different tasks" in refused.err


def test_saved_results_of_other_problems_or_none_are_refused(plait, tmp_path):
    line = {"text": "a", "solved": True, "total_tokens": 1, "critical_path_tokens": 1, "seconds": 1}
    (tmp_path / "a.jsonl").write_text(json.dumps(line) + "\n")
    (tmp_path / "b.jsonl").write_text(json.dumps({**line, "text": "b"}) + "\n")
    (tmp_path / "c.jsonl").write_text('{"no": "result"}\n')
    refused = plait("eval", "a.jsonl", "b.jsonl", "--json")
    assert refused.code == 2 and "no problem in common" in refused.json["error"]
    refused = plait("eval", "a.jsonl", "c.jsonl", "--json")
    assert refused.code == 2 and "line 1, is no result" in refused.json["error"]


def test_a_paired_difference_has_the_spread_of_its_pairs():
    assert paired_difference(0, 0, 50) == pytest.approx((0.0, -0.0582, 0.0582), abs=1e-4)  # never a width of 0
    mean, low, high = paired_difference(50, 0, 100)
    assert mean == 0.5 and 0.35 < low < 0.45 and 0.55 < high < 0.62
    low, high = paired_difference(60, 40, 200)[1:]
    assert low < 0.0 < high  # McNemar's exact test gives .057


@pytest.mark.parametrize("n", [1, 7, 100, 3000])
def test_exact_intervals_are_scipys(n):
    stats = pytest.importorskip("scipy.stats")
    for hits in {0, 1, n // 3, n - 1, n}:
        theirs = stats.binomtest(hits, n).proportion_ci(0.95, "exact")
        assert exact_share(hits, n) == pytest.approx((theirs.low, theirs.high), abs=1e-9)


def test_the_curves_of_a_pool_are_those_of_its_subsets():
    """pass@k and maj@k beside every subset of the pool, a tie counted by its right part."""
    pool = SamplePool((0, 1, 1, 0, None, 0, 2), frozenset({0}))
    for k in range(1, 8):
        passed, majority = [], []
        for subset in itertools.combinations(pool.classes, k):
            votes = Counter(each for each in subset if each is not None)
            most = [each for each in votes if votes[each] == max(votes.values())]
            passed.append(0 in subset)
            majority.append(most.count(0) / len(most) if most else 0.0)
        assert pool.pass_at(k) == pytest.approx(sum(passed) / len(passed))
        assert pool.majority_at(k) == pytest.approx(sum(majority) / len(majority), abs=0.08)
    assert pool.majority_at(7) == 1.0


def test_a_vote_has_a_curve_and_a_planner_its_policies(plait, tmp_path, script):
    rows = [{"question": f"What is {n} and {n}?", "answer": str(2 * n)} for n in range(1, 5)]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    replies = [{"when": f"is {n} and", "text": f"Answer: {2 * n if n < 4 else 7}"} for n in range(1, 5)]
    asked = ["eval", "q.jsonl", "--script", script(*replies)]
    both = [*asked, "--planner", "single", "--planner", "sample:n=8", "--planner", "sample:n=8+esc:window=2"]
    done = plait(*both, "--out", "r.jsonl", "--json")
    single, vote, stopped = done.json["compared"]
    assert not single["curve"] and [point[0] for point in vote["curve"]] == [1, 2, 4, 8]
    assert vote["curve"][-1][1][0] == vote["curve"][-1][2][0] == vote["solved"] == 0.75
    assert not stopped["curve"], "what a rule has stopped is no random sample"
    assert stopped["name"] == "sample:n=8+esc:window=2" and stopped["tokens"] < vote["tokens"]
    shown = plait("eval", "r.jsonl")
    assert "pass@k, maj@k  1: 75%, 75%" in shown.out and "none is shown to beat: single" in shown.out
    alone = plait(*asked, "--planner", "sample:n=4")
    assert "pass@k, maj@k" in alone.out and "none is shown" not in alone.out
    bad = plait(*asked, "--planner", "sample:n=8+nothing")
    assert bad.code == 2


def test_one_problem_recommends_the_cheapest():
    solved = {"text": "a", "solved": True, "total_tokens": 1200, "critical_path_tokens": 1, "seconds": 1}
    table = compared({"single": [solved], "sample_5": [{**solved, "total_tokens": 9, "solved": False}]})
    assert table.to_markdown().splitlines()[2].startswith("| single | 100.0% | 20.7%–100.0% |  | 1,200 |")
    assert r"sample\_5 & 0.0\% &" in table.to_latex() and table.to_latex().count(r"\\") == 3
    assert table.recommended.name == "sample_5"  # one problem shows nothing


def test_a_planner_that_others_beat_is_not_recommended():
    rows = [{"text": str(n), "total_tokens": 5, "critical_path_tokens": 1, "seconds": 1} for n in range(20)]
    table = compared({
        "good": [{**row, "solved": True, "total_tokens": 50} for row in rows],
        "bad": [{**row, "solved": n < 5} for n, row in enumerate(rows)],
    })  # fmt: skip
    assert table.recommended.name == "good" and [row.beaten for row in table] == [False, True]
