"""InterCode's problems: its files are read from a clone, and commands get its rewards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plait.core.errors import TaskError, ToolError
from plait_bench.environments.bash_sql import BashSqlEnvironment
from plait_bench.tasks.bash_sql import BashSql

SETUP = """\
#!/bin/bash
rm -rf /testbed/
mkdir -p /testbed/dir
echo one > /testbed/dir/a.txt
chmod 755 /testbed/dir/a.txt
"""
DUMP = r"""
-- Who's there
/*!40101 SET NAMES utf8; */;
CREATE DATABASE IF NOT EXISTS `pets`;
USE `pets`;
CREATE TABLE `dog` (
  `id` int unsigned NOT NULL AUTO_INCREMENT,
  `name` text COLLATE utf8mb4_general_ci COMMENT 'its, name',
  `kind` enum('big','small') CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL,
  PRIMARY KEY (`id`,`name`(255)),
  KEY `names` (`name`),
  CONSTRAINT `home` FOREIGN KEY (`id`) REFERENCES `cat` (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;
LOCK TABLES `dog` WRITE;
INSERT INTO `dog` VALUES (1,'Ann\'s; -- dog','big'),(2,'Bo','small'),(3,'a\\b','small');
UNLOCK TABLES;
"""


def clone(folder: Path) -> Path:
    """Write a folder as a clone of InterCode has it."""
    for name in ("data/nl2bash", "data/sql/spider", "docker/bash_scripts"):
        (folder / name).mkdir(parents=True)
    shell = [
        {"query": "Count the files.", "gold": "find /testbed -type f | wc -l"},
        {"query": "Copy it.", "gold": ["cd /testbed", "cp dir/a.txt b.txt"]},
    ]
    (folder / "data/nl2bash/nl2bash_fs_1.json").write_text(json.dumps(shell))
    (folder / "docker/bash_scripts/setup_nl2b_fs_1.sh").write_text(SETUP)
    rows = [{"db": "pets", "query": "Small dogs?", "gold": "SELECT name FROM dog WHERE kind = 'SMALL' ORDER BY id"}]
    (folder / "data/sql/spider/ic_spider_dev.json").write_text(json.dumps(rows))
    (folder / "data/sql/spider/ic_spider_dbs.sql").write_text(DUMP)
    return folder


def problem(folder: Path, file: str, place: int = 0) -> tuple[BashSqlEnvironment, Any]:
    asked = sorted(BashSql.drawn(9, 0, set=str(clone(folder) / "data" / file)), key=lambda row: len(str(row[1])))
    text, want = asked[place]
    assert "SELECT" not in BashSql(text=text).render() and "find" not in BashSql(text=text).render()
    return BashSqlEnvironment(text=text, sandbox="process"), want


async def did(place: BashSqlEnvironment, tool: str, *commands: str) -> list[str]:
    tools = {each.name: each for each in place.tools()}
    return [str(await tools[tool].fn(command)) for command in commands]


@pytest.mark.parametrize(
    ("commands", "reward"),
    [
        (("find /testbed -name '*.txt' | wc -l",), 1.0),
        (("ls /testbed/dir", "wc -l testbed/dir/a.txt"), 0.67),
        (("touch /testbed/x; find /testbed -type d | wc -l",), 0.39),
    ],
)
async def test_a_question_is_worth_what_was_said_and_left(
    tmp_path: Path, commands: tuple[str, ...], reward: float
) -> None:
    place, want = problem(tmp_path, "nl2bash/nl2bash_fs_1.json")
    await did(place, "bash", *commands)
    assert await place.reward(want) == pytest.approx(reward)
    assert await place.grade(None, want) is (reward == 1)


@pytest.mark.parametrize(
    ("commands", "right"),
    [
        (("cd /testbed/dir", "cat a.txt > ../b.txt"), True),
        (("cd /testbed/dir && cp a.txt ../b.txt",), True),
        (("echo two > /testbed/b.txt",), False),
        (("cp /testbed/dir/a.txt /testbed/c.txt",), False),
        (("cp /testbed/dir/a.txt /testbed/b.txt; chmod 644 /testbed/dir/a.txt",), False),
    ],
)
async def test_a_change_has_to_be_the_same_one(tmp_path: Path, commands: tuple[str, ...], right: bool) -> None:
    place, want = problem(tmp_path, "nl2bash/nl2bash_fs_1.json", 1)
    await did(place, "bash", *commands)
    assert await place.grade(None, want) is right


async def test_a_folder_at_the_root_is_told_as_such_and_cd_lasts(tmp_path: Path) -> None:
    place, _ = problem(tmp_path, "nl2bash/nl2bash_fs_1.json")
    told = await did(
        place, "bash", "echo /testbed/*/a.txt > /testbed/list; cat /testbed/list", "cd testbed/dir", "pwd; ls",
        "cat /testbed/list; cd / ", "ls -d testbed",
    )  # fmt: skip
    assert told[0] == "/testbed/dir/a.txt\n" == told[3], "what a file says of its place is so too"
    assert told[2] == "/testbed/dir\na.txt\n" and told[4] == "testbed\n"


@pytest.mark.parametrize(
    ("query", "reward"),
    [
        ("select name from dog where id > 1 order by id", 1.0),
        ("select name from dog where id > 1 order by id desc", -1.0),
        ("select name from dog order by id", 0.67),
        ("select id from dog", 0.0),
        ("select nothing", 0.0),
    ],
)
async def test_a_query_is_worth_its_rows_and_their_order(tmp_path: Path, query: str, reward: float) -> None:
    place, want = problem(tmp_path, "sql/spider/ic_spider_dev.json")
    await did(place, "query", query)
    assert await place.reward(want) == pytest.approx(reward, abs=0.005)
    assert await place.grade(None, want) is (reward == 1)


async def test_a_dump_of_mysql_is_read_with_its_escapes(tmp_path: Path) -> None:
    place, _ = problem(tmp_path, "sql/spider/ic_spider_dev.json")
    (told,) = await did(place, "query", "select * from dog")
    assert told == "1|Ann's; -- dog|big\n2|Bo|small\n3|a\\b|small"


@pytest.mark.parametrize(
    "file", ["none.json", "data/sql/wikisql/ic_wikisql_dev.json", "data/nl2bash/nl2bash_fs_2.json"]
)
def test_a_file_that_cannot_be_read_is_said(tmp_path: Path, file: str) -> None:
    path = clone(tmp_path) / file
    if file.startswith("data"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("[]")
    with pytest.raises(TaskError, match=r"not one of InterCode's|cannot be read"):
        BashSql.drawn(1, 0, set=str(path))


async def test_a_right_query_that_cannot_be_run_is_said() -> None:
    place = BashSqlEnvironment(text='{"prompt": "x"}', sandbox="process")
    with pytest.raises(ToolError, match="the right query cannot be run"):
        await place.grade(None, {"sql": "select * from nowhere"})
