"""The pytest plugin, as a user's tests load it: a scripted model, and one that is recorded once and then replayed."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import plait

USERS = '''
import os
import plait
from plait.core.tools.calls import call_text
from plait.workers.scripted import Reply, Scripted

def test_vote(scripted_model):
    model = scripted_model({"when": "2 . 2", "text": "answer: 4"}, "I do not know")
    answer = plait.run("2 + 2?", planner="sample:n=3", workers=[model], journal="off")
    assert (answer.answer, answer.why) == ("4", "3 of 3 votes, margin 3")

@plait.tool
def population(city: str) -> int:
    """Return the number of people."""
    return 2_800_000

def live():
    assert "LIVE" in os.environ, "the real model must not be asked"
    call = call_text("population", '{"city": "Rome"}')
    return Scripted([Reply(when="2800000", text="It has 2.8 million."), Reply(text=call)])

async def ask(model, question):
    return await plait.arun(question, planner="react", tools=[population], workers=[model], journal="off")

async def test_agent(recorded_model):
    answer = await ask(recorded_model(live), "How many people live in Rome?")
    assert answer.answer == "It has 2.8 million."
    assert [step.kind for step in answer.trace].count("call") == 1

async def test_another_question(recorded_model):
    answer = await ask(recorded_model(live), os.environ.get("QUESTION", "And in Paris?"))
    assert answer.status == "done", answer.failure.message
'''


def run(folder: Path, *options: str, **environment: str) -> str:
    paths = os.pathsep.join([*(str(Path(path).parent) for path in plait.__path__), *sys.path])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", *options]
    if not any(point.value == "plait.apps.pytest_plugin" for point in entry_points(group="pytest11")):
        command += ["-p", "plait.apps.pytest_plugin"]  # an older installation of this checkout
    env = {**os.environ, "PYTHONPATH": paths, **environment}
    done = subprocess.run([*command, "test_users.py"], cwd=folder, env=env, capture_output=True, text=True)
    return done.stdout + done.stderr


def test_the_models_of_the_plugin_answer_a_users_tests(tmp_path: Path) -> None:
    (tmp_path / "test_users.py").write_text(USERS)
    missing = run(tmp_path)
    assert "1 passed" in missing and "2 failed" in missing and "Record it: pytest --plait-record" in missing, missing
    recorded = run(tmp_path, "--plait-record", LIVE="1")
    assert "3 passed" in recorded, recorded
    assert (tmp_path / "recorded" / "test_agent.sqlite").is_file()
    assert "3 passed" in (again := run(tmp_path)), again
    other = run(tmp_path, QUESTION="And in Oslo?")
    assert "2 passed" in other and "was not recorded" in other, other
