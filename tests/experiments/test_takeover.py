"""Study `takeover`: the task, the planners of its conditions, calibration, and what the page says."""

from __future__ import annotations

import dataclasses

from experiments.takeover.run import CONDITIONS, PlanText, Row, calibration_of, page_of, planner_of
from plait_research.planners.ssr import SSR
from plait_research.planners.takeover import Takeover
from training.tables.generate import Case, plan_text
from training.tables.questions import held_out

ROW = Row("q", "target", True, "1. x\n2. join()", 0, 20, 1, {}, 1.0)


def test_an_answer_is_a_plan_and_judged_on_tables() -> None:
    for text in held_out(8):
        task, case = PlanText(text=text), Case(text, 0)
        plan = plan_text(case, range(len(case.calls)), {})
        assert task.complete(plan) and not task.complete(plan[:-3])
        assert task.verify(task.extract(plan + " and more")) is True
        assert task.verify(task.extract('1. lookup("age", "s0")\n2. add($1, $1)\n3. join()')) is False
        assert task.render().startswith("<plan>")


def test_each_condition_has_its_planner_and_calibration_is_by_round() -> None:
    rows = [
        dataclasses.replace(ROW, condition="calibrate 0", data={"scores": [[n / 100], [0.5]]}) for n in range(10, 40)
    ]  # fmt: skip
    scores = calibration_of([*rows, ROW])
    assert [len(each) for each in scores] == [30, 30]
    made = {key: planner_of(key, scores) for key in CONDITIONS}
    assert isinstance(made["takeover 0.2"], Takeover) and made["takeover 0.2"].records[0] == tuple(scores[0])
    assert isinstance(made["ssr 10"], SSR) and made["ssr 10"].threshold == 10


def test_what_a_batch_changes_in_the_last_digit_changes_no_take_over() -> None:
    """Equal segments came out at 0.764105 and 0.764106: which of them was the lowest decided nine questions."""
    for low in (0.764105, 0.764106):
        rows = [dataclasses.replace(ROW, condition="calibrate 0", data={"scores": [[low] * 3 + [0.9] * 77]})]
        planner = planner_of("takeover 0.02", calibration_of(rows))
        assert isinstance(planner, Takeover)
        assert [planner.takes_over(score, 0) for score in (0.7, 0.764105, 0.764106)] == [True, False, False]


def test_the_page_says_what_is_the_targets_own_and_compares_with_a_mix() -> None:
    rows: list[Row] = []
    for text in ("p", "q", "r", "s"):
        for key in CONDITIONS:
            draft = key == "draft"
            plan = "other" if draft and text == "p" else "same"
            data = {"drafted": 4, "rejected": 1} if key.startswith("takeover") else {}
            rows.append(Row(text, key, plan == "same", plan, 20 * draft, 20 * (not draft), 1, data, 2.0))
    page = page_of(rows, "command", 0.25)
    assert "4 held-out questions" in page and "| `draft` | 75.0 %" in page and "| 25 % of 16 |" in page
    assert page.count("100.0 %") > 20 and "| `ssr 10` | 100 % | +0.0 points" in page
    assert "oracle" in page and page_of([], "command", 0.25).count("|") > 5
