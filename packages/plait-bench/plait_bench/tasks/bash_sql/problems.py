"""Generates problems of `bash-sql` with a known solution. The generator computes the expected state itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from pydantic import JsonValue

NAMES = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "inlet", "jetty", "knoll", "larch")
Rows = list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class SqlProblem:
    """A problem."""

    kind: str
    """What it is about."""
    text: str
    """The task's text."""
    solution: tuple[tuple[str, str], ...]
    """Calls that solve the problem: `("bash", "rm a.txt")`, `("sql", "delete from …")`."""
    wanted: JsonValue
    """The state in the end."""


def drawn(count: int, seed: int) -> list[SqlProblem]:
    """Return problems, every kind in turn, all different."""
    random = Random(f"bash-sql/{seed}")
    problems: dict[str, SqlProblem] = {}
    while len(problems) < count:
        made = KINDS[len(problems) % len(KINDS)](random)
        problems.setdefault(made.text, made)
    return list(problems.values())


def _rows(random: Random, count: int = 6) -> Rows:
    return [(name, random.randint(1, 99)) for name in random.sample(NAMES, count)]


def _files(kind: str, prompt: str, files: dict[str, str], after: dict[str, str], *commands: str) -> SqlProblem:
    text = json.dumps({"prompt": prompt, "files": files})
    wanted: JsonValue = {"files": dict(after), "tables": {}}
    return SqlProblem(kind, text, tuple(("bash", command) for command in commands), wanted)


def _table(kind: str, prompt: str, rows: Rows, after: dict[str, Sequence[Sequence[object]]], *sql: str) -> SqlProblem:
    values = ", ".join(f"('{name}', {stock})" for name, stock in rows)
    made = f"create table goods (name text, stock integer); insert into goods values {values};"
    tables: dict[str, JsonValue] = {
        name: sorted([str(cell) for cell in row] for row in rows_after)  # pyright: ignore[reportAssignmentType]
        for name, rows_after in after.items()
    }
    text = json.dumps({"prompt": prompt, "files": {}, "sql": made})
    return SqlProblem(kind, text, tuple(("sql", statement) for statement in sql), {"files": {}, "tables": tables})


def _lines(rows: Rows) -> str:
    return "".join(f"{name} {stock}\n" for name, stock in rows)


def sort_lines(random: Random) -> SqlProblem:
    """Sort a file by its numbers."""
    rows = _rows(random)
    files = {"list.txt": _lines(rows)}
    ordered = _lines(sorted(rows, key=lambda row: (row[1], row[0])))
    prompt = "Write the lines of list.txt to sorted.txt, by their number, the smallest first (equal ones by name)."
    return _files("sort", prompt, files, files | {"sorted.txt": ordered}, "sort -k2,2n -k1,1 list.txt > sorted.txt")


def keep_lines(random: Random) -> SqlProblem:
    """Keep the lines with a large number."""
    rows, least = _rows(random, 8), random.randint(20, 80)
    files = {"list.txt": _lines(rows)}
    kept = _lines([row for row in rows if row[1] >= least])
    prompt = f"Remove from list.txt every line whose number is below {least}. Make no other file."
    command = f"awk '$2 >= {least}' list.txt > .new; mv .new list.txt"
    return _files("keep", prompt, files, {"list.txt": kept}, command)


def rename(random: Random) -> SqlProblem:
    """Rename all files of an ending."""
    old, new = random.sample(["log", "out", "tmp", "dat"], 2)
    names = random.sample(NAMES, 5)
    files = {f"{name}.{old if i % 2 else 'txt'}": f"{name}\n" for i, name in enumerate(names)}
    after = {name.removesuffix(f".{old}") + (f".{new}" if name.endswith(f".{old}") else ""): text
             for name, text in files.items()}  # fmt: skip
    prompt = f"Rename every file that ends in .{old} so that it ends in .{new}."
    return _files("rename", prompt, files, after, f'for f in *.{old}; do mv "$f" "${{f%.{old}}}.{new}"; done')


def delete_empty(random: Random) -> SqlProblem:
    """Delete empty files."""
    files = {f"{name}.txt": "" if random.random() < 0.5 else f"{name}\n" for name in random.sample(NAMES, 6)}
    after = {name: text for name, text in files.items() if text}
    return _files("empty", "Delete all empty files.", files, after, "find . -type f -empty -delete")


def replace(random: Random) -> SqlProblem:
    """Replace a word in all files."""
    old, new, *others = random.sample(NAMES, 5)
    files = {f"{i}.txt": " ".join(random.choices([old, *others], k=5)) + "\n" for i in range(4)}
    after = {name: text.replace(old, new) for name, text in files.items()}
    prompt = f"Replace the word {old} by {new} in every file."
    return _files("replace", prompt, files, after, f"sed -i 's/{old}/{new}/g' *.txt")


def count_lines(random: Random) -> SqlProblem:
    """Write how many lines have a word."""
    word, *others = random.sample(NAMES, 4)
    lines = random.choices([word, *others], k=random.randint(8, 14))
    files = {"words.txt": "".join(f"{line}\n" for line in lines)}
    prompt = f"Write to count.txt how many lines of words.txt are {word}: the number alone."
    after = files | {"count.txt": f"{lines.count(word)}\n"}
    return _files("count", prompt, files, after, f"grep -c '^{word}$' words.txt > count.txt")


def join_files(random: Random) -> SqlProblem:
    """Put files together and delete them."""
    files = {f"{name}.part": f"{name} {random.randint(1, 99)}\n" for name in random.sample(NAMES, 4)}
    whole = "".join(files[name] for name in sorted(files))
    prompt = "Put the .part files together as whole.txt, in the order of their names, and delete them."
    return _files("join", prompt, files, {"whole.txt": whole}, "cat *.part > whole.txt && rm *.part")


def add_stock(random: Random) -> SqlProblem:
    """Raise a number in rows that are small."""
    rows, below, more = _rows(random), random.randint(30, 70), random.randint(5, 40)
    after = [(name, stock + more if stock < below else stock) for name, stock in rows]
    prompt = f"In the table goods, add {more} to the stock of all goods of which there are fewer than {below}."
    sql = f"update goods set stock = stock + {more} where stock < {below}"
    return _table("add", prompt, rows, {"goods": after}, sql)


def drop_rows(random: Random) -> SqlProblem:
    """Delete rows."""
    rows, above = _rows(random), random.randint(30, 70)
    after = [row for row in rows if row[1] <= above]
    prompt = f"Delete from the table goods everything of which there are more than {above}."
    return _table("drop", prompt, rows, {"goods": after}, f"delete from goods where stock > {above}")


def largest(random: Random) -> SqlProblem:
    """Make a table of the largest."""
    rows, count = _rows(random, 8), random.randint(2, 4)
    first = sorted(rows, key=lambda row: (-row[1], row[0]))[:count]
    prompt = (
        f"Make a table top with the columns name and stock that has the {count} goods of the largest stock "
        "(of equal ones those first by name)."
    )
    sql = f"create table top as select name, stock from goods order by stock desc, name limit {count}"
    return _table("largest", prompt, rows, {"goods": rows, "top": first}, sql)


def total(random: Random) -> SqlProblem:
    """Make a table of a sum, looked at before."""
    rows = _rows(random)
    letter = rows[0][0][0]
    of_it = sum(stock for name, stock in rows if name.startswith(letter))
    prompt = f"Make a table total with one column, value, and one row: the stock of all goods that begin with {letter}."
    sql = f"create table total as select sum(stock) as value from goods where name like '{letter}%'"
    return _table("total", prompt, rows, {"goods": rows, "total": [(of_it,)]}, sql)


def rename_good(random: Random) -> SqlProblem:
    """Rename one row and leave a note of it in a second table."""
    rows = _rows(random)
    old = random.choice(rows)[0]
    new = random.choice([name for name in NAMES if name not in dict(rows)])
    after = [(new if name == old else name, stock) for name, stock in rows]
    prompt = f"Rename the good {old} to {new}, and make a table renamed with the columns old and new that says so."
    statements = (
        f"update goods set name = '{new}' where name = '{old}'",
        f"create table renamed (old text, new text); insert into renamed values ('{old}', '{new}')",
    )
    return _table("renamed", prompt, rows, {"goods": after, "renamed": [(old, new)]}, *statements)


KINDS: tuple[Callable[[Random], SqlProblem], ...] = (
    sort_lines, add_stock, keep_lines, drop_rows, rename, largest, delete_empty, total, replace, rename_good,
    count_lines, join_files,
)  # fmt: skip
