"""The real REPL on a real terminal of 80 x 24, in tmux: start, ask, watch, Ctrl-C, ask again, leave."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time

import pytest

from scripts.checkout import python_path

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed (apt-get install tmux)")

SLOW = {"when": "slow", "text": " ".join(f"word{n}" for n in range(1, 60)), "tokens_per_second": 6}
EVIL = {"when": "evil", "text": "\x1b[2J\x1b[H\x1b[7mgot you\x1b[0m"}


class Terminal:
    """A tmux server of its own, with one pane."""

    def __init__(self, socket: str) -> None:
        self._tmux = ["tmux", "-S", socket, "-f", os.devnull]

    def start(self, command: str, env: dict[str, str]) -> None:
        given = [word for name, value in env.items() for word in ("-e", f"{name}={value}")]
        self._do("new-session", "-d", "-s", "plait", "-x", "80", "-y", "24", *given, command)

    def keys(self, *keys: str) -> None:
        self._do("send-keys", "-t", "plait", *keys)

    def type(self, text: str) -> None:
        self._do("send-keys", "-t", "plait", "-l", text)
        self.keys("Enter")

    def screen(self) -> str:
        return self._do("capture-pane", "-p", "-t", "plait")

    def until(self, pattern: str, seconds: float = 300.0) -> str:
        """Wait until a pattern is on the screen, and return the screen."""
        end = time.monotonic() + seconds
        while True:
            seen = self.screen()
            if re.search(pattern, seen, re.MULTILINE):
                return seen
            assert time.monotonic() < end, f"{pattern!r} never came:\n{seen}"
            time.sleep(0.05)

    def close(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], check=False, capture_output=True)

    def _do(self, *words: str) -> str:
        return subprocess.run([*self._tmux, *words], check=True, capture_output=True, text=True, timeout=500).stdout


@pytest.fixture
def terminal(tmp_path):
    made = Terminal(str(tmp_path / "tmux"))
    yield made
    made.close()


def test_a_conversation_on_a_real_terminal(terminal, script, root, tmp_path):
    replies = script(SLOW, EVIL, "answer: 42")
    words = [sys.executable, "-m", "plait.apps.main", "repl", "--script", str(replies), "--planner", "sample:n=3"]
    env = {
        "PYTHONPATH": python_path(root),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "LANG": "C.UTF-8",
    }
    terminal.start(f"{shlex.join(words)}; echo left with $?; sleep 60", env)
    begun = terminal.until(r"^plait>\n\s*^the script .* · sample:n=3$")  # what is in use stands in the last line
    assert "Ask, or /help; Ctrl-D leaves." in begun

    terminal.type("a slow question")
    moving = terminal.until(r"● sample-3 +[1-9]\d* tok .*word2")
    assert re.search(r"^a slow question +[\d.]+ s +\d+ tokens +3 running$", moving, re.MULTILINE)
    assert re.search(r"^plait>$", moving, re.MULTILINE), "nothing can be typed while the run is under way"
    terminal.type("/prune sample-2 not this one")
    terminal.until(r"− sample-2 .*not this one")
    assert moving != terminal.until(r"● sample-1 .*word5"), "the tree does not move"

    terminal.keys("C-c")
    ended = terminal.until(r"^cancelled · ")
    assert re.search(r"− sample-1 +\d+ tok .*sample 1 of 3 +cancelled by the user$", ended, re.MULTILINE)
    assert re.search(r"− sample-2 +\d+ tok .*sample 2 of 3 +not this one$", ended, re.MULTILINE)
    assert ended.count("● ") == 0
    assert ended.count("a slow question  ") == 1, "a stale tree was left on the screen"

    terminal.type("a quick question")
    answered = terminal.until(r"^3 of 3 votes")
    assert re.search(r"^42$", answered, re.MULTILINE)
    assert re.search(r"^done · .*\d+ tokens", answered, re.MULTILINE)

    terminal.type("/branches")
    tree = terminal.until(r"^└─ . vote .* 3 of 3 votes")
    assert re.search(r"^├─ . sample-1 +\d+ tok .*\d\.\d\d s", tree, re.MULTILINE)
    terminal.type("something evil")
    shown = terminal.until(r"␛\[2J")
    assert re.search(r"^plait> something evil", shown, re.MULTILINE), "a model cleared the screen"
    assert max(map(len, shown.splitlines())) <= 80
    terminal.type("/quit")
    terminal.until(r"^left with [01]$")
