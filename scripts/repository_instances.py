"""Make instances for the environment `repository` of the history of a package whose tests are unittest's.

    python -m scripts.repository_instances CLONE FOLDER PROMPTS.json

PROMPTS.json names commits that fix something, each with the request: {"commit": "prompt"}. FOLDER gets NAME.bundle,
with the package's files before each of these commits, and NAME.jsonl, rows for `plait eval`: the request, the commit
in the bundle, the tests that the fix makes pass and some that pass before and after, the fix itself. The tests of both
versions are run here, not in a sandbox.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

KEPT = 6
"""Most tests of an instance that pass before and after."""
_TEST = re.compile(r"^\w+ \((tests?\.[\w.]+)\)(?:.|\n)*?\.\.\. (ok|FAIL|ERROR)$", re.MULTILINE)
_AUTHOR = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "plait"), ("EMAIL", "plait@localhost"), ("DATE", "2026-01-01T00:00:00Z"))
}


def git(folder: Path, *words: str, given: bytes = b"") -> bytes:
    """Run git in a folder and return its output. Raises `CalledProcessError`."""
    done = subprocess.run(
        ["git", "-C", str(folder), *words], input=given, capture_output=True, check=True, env=os.environ | _AUTHOR
    )
    return done.stdout


def statuses(folder: Path, tests: str) -> dict[str, str]:
    """Return the outcome of each test in the files that a patch of tests changes."""
    modules = [name.replace("/", ".") for name in re.findall(r"^\+\+\+ b/(tests/.*)\.py$", tests, re.MULTILINE)]
    command = [sys.executable, "-m", "unittest", "-v", *modules]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, check=False, text=True, env={"PATH": os.environ["PATH"]}
    )
    return dict(_TEST.findall(done.stderr))


def make_instance(clone: Path, work: Path, commit: str, prompt: str, bundle: str) -> dict[str, Any]:
    """Commit the files before a fix to the repository `work`; return the instance's row."""
    for path in work.iterdir():
        if path.name != ".git":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    files = git(clone, "ls-tree", "-r", "--name-only", commit).decode().split("\n")
    package = next(
        name for name in re.findall(r"^(\w+)/__init__\.py$", "\n".join(files), re.MULTILINE) if name != "tests"
    )
    parts = [package, "tests", "LICENSE"]
    subprocess.run(["tar", "x", "-C", str(work)], input=git(clone, "archive", f"{commit}~", *parts), check=True)
    patch = git(clone, "diff", f"{commit}~", commit, "--", package).decode()
    tests = git(clone, "diff", f"{commit}~", commit, "--", "tests").decode()
    git(work, "add", "-A")
    git(work, "commit", "--quiet", "--allow-empty", "-m", f"Before {commit}")
    base = git(work, "rev-parse", "HEAD").decode().strip()
    git(work, "apply", "-", given=tests.encode())
    before = statuses(work, tests)
    git(work, "apply", "-", given=patch.encode())
    after = statuses(work, tests)
    git(work, "checkout", "--quiet", ".")
    fixed = sorted(test for test, how in after.items() if how == "ok" and before.get(test) != "ok")
    near = {test.rpartition(".")[0] for test in fixed}
    kept = sorted(
        test for test, how in after.items() if how == before.get(test) == "ok" and test.rpartition(".")[0] in near
    )
    want = {"FAIL_TO_PASS": fixed, "PASS_TO_PASS": kept[:KEPT], "test_patch": tests}
    text = json.dumps({"prompt": prompt, "repository": [bundle, base]})
    return {"id": commit, "text": text, "want": want, "patch": patch}


def main(clone: Path, folder: Path, prompts: dict[str, str]) -> None:
    """Write the bundle and the rows."""
    name = clone.name
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        git(work, "init", "--quiet", "-b", "main")
        rows = [make_instance(clone, work, commit, prompt, f"{name}.bundle") for commit, prompt in prompts.items()]
        git(work, "gc", "--quiet", "--aggressive")
        git(work, "bundle", "create", str(folder.resolve() / f"{name}.bundle"), "main")
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(Path(sys.argv[3]).read_text(encoding="utf-8")))
