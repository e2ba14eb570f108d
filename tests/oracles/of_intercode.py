"""InterCode's rewards: of an SQL answer's rows, and of a folder that commands have changed."""

from __future__ import annotations

import importlib
import math
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from hashlib import md5
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from plait_bench.environments._intercode import of_rows, of_shell
from tests.oracles.harness import Oracle, take


def _results(random: Random) -> Iterator[dict[str, Any]]:
    """Rows that an agent saw, and those of the gold query."""
    while True:
        gold = [[random.choice(("Ann", "Bo", 3, 4.5, None)), random.randint(0, 3)] for _ in range(random.randint(0, 6))]
        seen = [list(row) for row in gold]
        match random.randrange(5):
            case 0:
                random.shuffle(seen)
            case 1 if seen:
                seen[random.randrange(len(seen))][1] = 9
            case 2 if seen:
                seen.pop()
            case 3:
                seen.append(["Bo", 1])
        yield {"seen": seen, "gold": gold}


def theirs(clone: Path) -> Callable[[Any], Any]:
    stats = importlib.import_module("scipy.stats")
    names = {name: name.lower() for name in ("AGENT_OBS", "CORRUPT_GOLD", "EVAL_OBS", "REWARD")}
    space = take(
        clone / "intercode/envs/sql/sql_env.py", "SqlEnv.get_reward", "SqlEnv.get_intersect_items", **names,
        Counter=Counter, chain=chain, groupby=groupby, itemgetter=itemgetter, kendalltau=stats.kendalltau, math=math,
        mysql=SimpleNamespace(connector=SimpleNamespace(errors=SimpleNamespace(ProgrammingError=OSError,
                                                                               DatabaseError=OSError))),
    )  # fmt: skip

    def run(case: dict[str, Any]) -> float:
        cursor = SimpleNamespace(execute=lambda _: None, description=(), fetchall=lambda: case["gold"])
        own = SimpleNamespace(
            observation=case["seen"], gold="", cur=cursor, logger=SimpleNamespace(info=lambda _: None),
            get_intersect_items=lambda listed, known: space["get_intersect_items"](None, listed, known),
        )  # fmt: skip
        reward, _ = space["get_reward"](own)
        return float(reward)

    return run


def ours(case: dict[str, Any]) -> float:
    return of_rows(case["seen"], case["gold"])


# --- a folder --------------------------------------------------------------------------------------------------------

NAMES = ("a.txt", "one/b.sh", "one/two/c", "three/d.py")
NEW = ("e", "one/f.txt", "one/new/g", "new/h.txt", "new/deep/i", "new.d/j")
WORDS = ("dog", "cat", "x", "42", "barks", "./a.txt")


def _folders(random: Random) -> Iterator[dict[str, Any]]:
    """What there was, what an agent and the right command have made of it, and what both said."""
    while True:
        first = _folder({name: f"text of {name}" for name in NAMES})
        gold = _changed(random, first)
        ours_ = gold if random.random() < 0.3 else _changed(random, gold if random.random() < 0.5 else first)
        said = [" ".join(random.choices(WORDS, k=random.randint(0, 5))) for _ in range(2)]
        yield {
            "first": first, "ours": ours_, "gold": gold, "wanted": said[0],
            "said": said[0] if random.random() < 0.4 else said[1],
        }  # fmt: skip


def _folder(files: dict[str, str], modes: dict[str, str] | None = None) -> dict[str, Any]:
    modes = {name: (modes or {}).get(name, "755" if name.endswith(".sh") else "644") for name in files}
    return {"files": files, "modes": modes, "links": {}}


def _changed(random: Random, folder: dict[str, Any]) -> dict[str, Any]:
    files, modes = dict(folder["files"]), dict(folder["modes"])
    for _ in range(random.randint(0, 3)):
        name = random.choice(sorted(files)) if files else "a.txt"
        match random.randrange(4):
            case 0:
                files[name] = random.choice(("new", "other"))
            case 1:
                files.pop(name, None)
            case 2:
                files[random.choice(NEW)] = random.choice(("new", "other"))
            case _:
                modes[name] = random.choice(("755", "644"))
    return _folder(files, modes)


class _Container:
    """A folder of theirs: git is the real one, checksums are taken here."""

    def __init__(self, place: Path, first: dict[str, Any], now: dict[str, Any], said: str) -> None:
        self._place, self._said = place, said
        _write(place, first)
        for words in (["init", "-q"], ["add", "-A"], [*_WHO, "commit", "-qm", "first"]):
            subprocess.run(["git", *words], cwd=place, check=True, capture_output=True)
        for path in place.iterdir():
            if path.name != ".git":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        _write(place, now)

    def exec_run(self, command: str) -> Any:
        match command.split():
            case ["git", "reset", *_]:
                said = ""
            case ["git", "status", *_]:
                said = subprocess.run(
                    ["git", "status", "--short"], cwd=self._place, check=True, capture_output=True, text=True
                ).stdout
            case ["md5sum", path]:
                said = self._sum(self._place / path)
            case ["md5deep", "-r", path]:
                whole = self._place / path
                files = sorted(each for each in whole.rglob("*") if each.is_file()) if whole.is_dir() else [whole]
                said = "\n".join(f"{self._sum(each)} {each.relative_to(self._place)}" for each in files)
            case _:
                said = self._said
        return _Said((0, said.encode()))

    def _sum(self, path: Path) -> str:
        return md5(path.read_bytes()).hexdigest() if path.is_file() else "it is a directory"


class _Said(tuple[int, bytes]):
    @property
    def output(self) -> bytes:
        return self[1]


_WHO = ("-c", "user.name=a", "-c", "user.email=a@b.c")


def _write(place: Path, folder: dict[str, Any]) -> None:
    for name, text in folder["files"].items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(int(folder["modes"][name], 8))


def shell_theirs(clone: Path) -> Callable[[Any], Any]:
    text = importlib.import_module("sklearn.feature_extraction.text")
    names = {name: name.lower() for name in ("AGENT_OBS", "CORRUPT_GOLD", "EVAL_OBS", "REWARD", "ACTION_EXEC")}
    space = take(
        clone / "intercode/envs/bash/bash_env.py", "BashEnv.get_reward", "BashEnv.parse_status", "GIT_RESET_SCRIPT",
        "GIT_STATUS_SCRIPT", **names, math=math, TfidfVectorizer=text.TfidfVectorizer, List=list,
    )  # fmt: skip

    def run(case: dict[str, Any]) -> float:
        with tempfile.TemporaryDirectory() as folder:
            places = [Path(folder, side) for side in ("ours", "gold")]
            for place in places:
                place.mkdir()
            mine, right = (
                _Container(place, case["first"], case[side], case["wanted"])
                for place, side in zip(places, ("ours", "gold"), strict=True)
            )
            own = SimpleNamespace(
                container=mine, container_eval=right, ctr_name_eval="", observation=case["said"], gold="right", info={},
                clean_cmd=lambda command: command, logger=SimpleNamespace(info=lambda _: None),
                parse_status=lambda said: space["parse_status"](None, said),
            )  # fmt: skip
            return float(round(space["get_reward"](own)[0], 2))

    return run


def shell_ours(case: dict[str, Any]) -> float:
    return of_shell(case["first"], case["ours"], case["gold"], case["said"], case["wanted"])


ORACLES = [
    Oracle(
        "intercode-sql", "princeton-nlp/intercode", "c3e46d827cfc9d4c704ec078f7abf9f41e3191d8", "MIT",
        "intercode/envs/sql/sql_env.py SqlEnv.get_reward", _results, theirs, ours, number=200,
    ),
    Oracle(
        "intercode-bash", "princeton-nlp/intercode", "c3e46d827cfc9d4c704ec078f7abf9f41e3191d8", "MIT",
        "intercode/envs/bash/bash_env.py BashEnv.get_reward", _folders, shell_theirs, shell_ours, number=100,
        tolerance=1e-6,
    ),
]  # fmt: skip
