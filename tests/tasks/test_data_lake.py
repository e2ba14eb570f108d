"""Environment `data-lake`: files as tables, planners over them, answers graded by KramaBench's and Spider's rules."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from plait import AsyncOrchestrator
from plait.core.errors import ToolError
from plait.workers.scripted import Reply, Scripted
from plait_bench.environments.data_lake import DataLakeEnvironment, pack_lake
from plait_bench.tasks.bash_sql import BashSql
from scripts.lake_questions import questions

SALES = "region,amount,code\nnorth,10,007\nsouth,20,\nnorth,5.5,x\n"
BEST = "select region from sales order by amount desc limit 1"
QUESTION = {"prompt": "Who manages the region with the largest sale?", "lake": []}


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A folder with a table of each kind, and a file that is none."""
    folder = tmp_path / "lake"
    folder.mkdir()
    (folder / "sales.csv").write_text(SALES)
    people = [{"region": "south", "name": "Bo", "tags": ["a"]}, {"region": "north", "name": "Ann"}]
    (folder / "people.json").write_text(json.dumps(people))
    (folder / "notes.txt").write_text("amounts are in thousands\n")
    with sqlite3.connect(folder / "shop.sqlite") as shop:
        shop.execute('create table "order" (id integer, "a b" text)')
        shop.execute("""insert into "order" values (1, 'it''s')""")
    shop.close()
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def placed(folder: Path, **given: Any) -> DataLakeEnvironment:
    return DataLakeEnvironment(text=json.dumps(QUESTION | given), sandbox="process", folder=str(folder))


async def call(place: DataLakeEnvironment, name: str, given: str) -> Any:
    tools = {each.name: each for each in place.tools()}
    return await tools[name](**{"statement" if name == "query" else "command": given})


async def test_each_file_is_a_table_and_nothing_changes_the_lake(lake: Path) -> None:
    place = placed(lake)
    assert [tool.name for tool in place.tools()] == ["look", "query"]
    assert await call(place, "query", "select region, amount, code from sales") == "\n".join(
        ["north|10|7", "south|20|None", "north|5.5|x"]
    )
    assert await call(place, "query", "select name, tags from people") == 'Bo|["a"]\nAnn|None'
    assert await call(place, "query", 'select "a b" from "order"') == "it's"
    assert (await call(place, "look", "cat notes.txt; rm *; ls")).startswith("amounts are in thousands")
    await call(place, "query", "drop table sales")
    assert await call(place, "query", "select count(*) from sales") == "3"
    assert names(lake) == ["notes.txt", "people.json", "sales.csv", "shop.sqlite"]


async def test_parquet_is_a_table(lake: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    table = pytest.importorskip("pyarrow").table({"day": [1, 2], "of": [{"x": 1}, None]})
    parquet.write_table(table, lake / "days.parquet")
    assert await call(placed(lake, lake=["days.parquet"]), "query", "select day, of from days") == '1|{"x": 1}\n2|None'


@pytest.mark.parametrize("name", ["../secret", "gone.csv", "."])
def test_a_file_that_is_not_in_the_lake_is_named(lake: Path, name: str) -> None:
    (lake / "../secret").write_text("x")
    with pytest.raises(ToolError, match="is not a file of the data lake"):
        pack_lake(str(lake), [name])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("bad.json", b"{"),
        ("bad.sqlite", b"no database at all, but a text that is long enough"),
        ("two.csv", b"a,b\n1,2\n1\n"),
        ("title.csv", b"Report,,\na,b,c\n"),
        ("empty.csv", b""),
    ],
)
async def test_a_file_that_is_no_table_is_there_to_look_at(lake: Path, name: str, text: bytes) -> None:
    (lake / name).write_bytes(text)
    place = placed(lake)
    assert await call(place, "query", "select name from sqlite_master order by name") == "order\npeople\nsales"
    assert (await call(place, "look", f"cat {name}")).strip() == text.decode().strip()


async def test_files_in_folders_are_tables_of_their_path(lake: Path) -> None:
    (lake / "more").mkdir()
    (lake / "more" / "sales.csv").write_bytes(b"caf\xe9\n1\n")
    assert await call(placed(lake), "query", 'select * from "more/sales"') == "1"


def test_a_lake_of_no_size_or_too_large_is_refused(lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ToolError, match="1 byte to 64 MiB"):
        pack_lake(str(tmp_path / "nowhere"), [])
    monkeypatch.setattr("plait_bench.environments.data_lake._MAX_BYTES", 10)
    with pytest.raises(ToolError, match="name a question's files in its `lake`"):
        pack_lake(str(lake), [])


async def answered(planner: str, replies: list[Reply], folder: Path) -> Any:
    place = placed(folder)
    async with AsyncOrchestrator(workers=[Scripted(replies)], journal="off") as plait:
        answer = await plait.run(place.text, task="bash-sql", planner=planner, tools=place.tools())
    assert answer.status == "done", answer.why
    return answer.answer, await place.grade(answer.answer, {"answer": "Bo", "answer_type": "string_exact"})


async def test_workflow_plans_the_pipeline(lake: Path) -> None:
    plan = {
        "steps": [
            {"id": "best", "call": "query", "args": {"statement": BEST}},
            {"id": "who", "call": "query",
             "args": {"statement": "select name from people where region = '{$best}'"}},
        ],
        "answer": "$who",
    }  # fmt: skip
    assert await answered("workflow", [Reply(text=json.dumps(plan))], lake) == ("Bo", True)


async def test_llmcompiler_plans_the_pipeline(lake: Path) -> None:
    plan = f"""1. query(statement="{BEST}")
2. query(statement="select name from people where region = '$1'")
3. join()<END_OF_PLAN>"""
    replies = [Reply(text="Thought: done.\nAction: Finish(Bo)", when="south.*Bo"), Reply(text=plan)]
    assert await answered("llmcompiler", replies, lake) == ("Bo", True)


@pytest.mark.parametrize(
    ("answer", "wanted", "right"),
    [
        ("15", {"answer": 15, "answer_type": "numeric_exact"}, True),
        ("12%", {"answer": 0.12, "answer_type": "numeric_exact"}, True),
        ("101", {"answer": 100, "answer_type": "numeric_approximate"}, True),
        ("102", {"answer": 100, "answer_type": "numeric_approximate"}, False),
        ('["b", "A"]', {"answer": ["a", "b"], "answer_type": "list_exact"}, True),
        ('["b"]', {"answer": ["a", "b"], "answer_type": "list_exact"}, False),
        (None, {"answer": "a", "answer_type": "string_exact"}, False),
        ("select name, region from people", {"tables": ["n\nAnn\nBo\n"], "ignore_order": True}, True),
        ("select name from people", {"tables": ["n\nAnn\nBo\n"]}, False),
        ("select * from sales", {"tables": ["x\n1\n", "a,b\nz,10\nz,20\nz,5.5\n"], "columns": [[0], [1]]}, True),
        ("select no from sales", {"tables": ["n\nAnn\n"]}, False),
        ("n\nAnn\n", {"tables": ["m\nAnn\n"]}, True),
        (None, {"tables": ["m\nAnn\n"]}, False),
        ("[" * 90_000, {"answer": [1], "answer_type": "list_exact"}, False),
        ("__import__('os').getcwd()", {"answer": [1], "answer_type": "list_exact"}, False),
    ],
)
async def test_answers_are_graded(lake: Path, answer: Any, wanted: Any, right: bool) -> None:
    assert await placed(lake).grade(answer, wanted) is right


@pytest.mark.parametrize("wanted", [None, {}, {"answer": "a", "answer_type": "string_approximate"}, {"tables": 1}])
async def test_what_only_a_model_can_judge_is_refused(lake: Path, wanted: Any) -> None:
    with pytest.raises(ToolError, match="of numeric_exact, numeric_approximate"):
        await placed(lake).grade("a", wanted)


def test_the_task_reads_blocks_of_queries() -> None:
    task = BashSql(text=json.dumps(QUESTION))
    assert "sqlite_master" in task.render()
    text = "First:\n```sql\nselect 1\n```\nBetter:\n```sql\nselect 2,\n  3\n```\nDone."
    assert task.extract(text) == "select 2,\n  3\n"
    assert task.extract("```sql\nselect 1") == "select 1"


def test_questions_are_read_from_both_benchmarks(tmp_path: Path) -> None:
    exact, judged = {"answer": 15, "answer_type": "numeric_exact"}, {"answer": "x", "answer_type": "string_approximate"}
    step = {"query": "Which file?", "answer": "a.csv", "answer_type": "string_exact", "step": "Read a.csv."}
    rows = [{"query": "How many?", "subtasks": [step], **exact}, {"query": "Why?", **judged}]
    (tmp_path / "legal.json").write_text(json.dumps(rows))
    whole, part = questions(tmp_path / "legal.json", steps=True)
    assert whole == {"text": '{"prompt": "How many?", "lake": []}', "want": exact}
    assert "Which file?" in part["text"] and part["want"]["answer"] == "a.csv"
    gold = tmp_path / "evaluation_suite" / "gold"
    (gold / "exec_result").mkdir(parents=True)
    (gold / "exec_result" / "local1_a.csv").write_text("n\n1\n")
    rule = {"instance_id": "local1", "condition_cols": [1], "ignore_order": True}
    (gold / "spider2lite_eval.jsonl").write_text(json.dumps(rule))
    (tmp_path / "lite.jsonl").write_text(
        "\n".join(json.dumps({"instance_id": name, "db": "shop", "question": "Q?"}) for name in ("local1", "bq1"))
    )
    (row,) = questions(tmp_path / "lite.jsonl")
    assert json.loads(row["text"]) == {
        "prompt": "Q? Answer with one query in an ```sql block.",
        "lake": ["shop.sqlite"],
    }
    assert row["want"] == {"tables": ["n\n1\n"], "columns": [[1]], "ignore_order": True}
