"""Coding agents as they are installed: each reads one file and writes another, in a new home.

The folder of their environments is in `CONFORMANCE_AGENTS`: `node` with the packages of npm, `mini` and `aider`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from agent_turns import NUMBER, TASK

AGENTS = Path(os.environ.get("CONFORMANCE_AGENTS", "")).absolute()
if not AGENTS.name or not AGENTS.is_dir():
    raise ImportError("no folder of coding agents")
VERSION = "on its page"
VOTES = "plait/sample:n=4@"
AUTO = "plait/auto@"
LIMIT_S = 110


def finish_task(command: list[str], files: dict[str, str], variables: dict[str, str]) -> None:
    """Run an agent once. Raises if it does not leave the sum in the file.

    `HOME` and `WORK` in files and variables stand for the new folders; a file's name is relative to the home.
    """
    with tempfile.TemporaryDirectory() as folder:
        home, work = Path(folder, "home"), Path(folder, "work")
        work.mkdir(parents=True)
        (work / "number.txt").write_text(f"{NUMBER}\n")
        (work / "answer.txt").write_text("")
        subprocess.run(["git", "init", "-q", str(work)], check=True)

        def filled(text: str) -> str:
            return text.replace("$HOME", str(home)).replace("$WORK", str(work))

        for name, text in files.items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(filled(text))
        environment = {"HOME": str(home), "PATH": os.environ["PATH"], "OPENAI_API_KEY": "none", "CI": "1"}
        environment |= {name: filled(value) for name, value in variables.items()}
        done = subprocess.run(
            [filled(word) for word in command],
            cwd=work,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        answer = (work / "answer.txt").read_text().strip()
        if answer != str(NUMBER + 1):
            sys.stderr.write(done.stdout[-2000:] + done.stderr[-2000:])
            raise AssertionError(f"answer.txt has {answer!r}")


def node(name: str) -> str:
    return str(AGENTS / "node" / "node_modules" / ".bin" / name)


def codex(base, model):
    config = f"""
model_provider = "local"
[model_providers.local]
name = "local"
base_url = "{base}"
wire_api = "responses"
env_key = "OPENAI_API_KEY"
"""
    flags = ["--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check"]
    command = [node("codex"), "exec", "-m", model, *flags, TASK]
    finish_task(command, {".codex/config.toml": config}, {"CODEX_HOME": "$HOME/.codex"})


def claude_code(base, model):
    variables = {
        "ANTHROPIC_BASE_URL": base.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": "none",
        "ANTHROPIC_MODEL": model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": model.rpartition("@")[2],
        "CLAUDE_CONFIG_DIR": "$HOME",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    finish_task([node("claude"), "-p", TASK, "--allowedTools", "Bash"], {".keep": ""}, variables)


def opencode(base, model):
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": base, "apiKey": "none"},
        "models": {model: {"name": "a model"}},
    }
    config = {"provider": {"local": provider}, "permission": {"bash": "allow"}, "autoupdate": False}
    command = [node("opencode"), "run", "-m", f"local/{model}", TASK]
    finish_task(command, {".config/opencode/opencode.json": json.dumps(config)}, {})


def qwen_code(base, model):
    variables = {"OPENAI_BASE_URL": base, "OPENAI_MODEL": model}
    command = [node("qwen"), "-p", TASK, "--approval-mode", "yolo", "--auth-type", "openai"]
    finish_task(command, {".keep": ""}, variables)


def continue_cli(base, model):
    config = f"""
name: local
version: 0.0.1
schema: v1
models:
  - name: local
    provider: openai
    model: {model}
    apiBase: {base}
    apiKey: none
    roles: [chat]
    capabilities: [tool_use]
"""
    command = [node("cn"), "-p", TASK, "--config", "$HOME/config.yaml", "--auto"]
    finish_task(command, {"config.yaml": config}, {"CONTINUE_GLOBAL_DIR": "$HOME", "CONTINUE_TELEMETRY_ENABLED": "0"})


def aider(base, model):
    flags = ["--yes-always", "--no-check-update", "--analytics-disable"]
    flags += ["--no-show-model-warnings", "--no-auto-commits"]
    command = [str(AGENTS / "aider" / "bin" / "aider"), "--model", f"openai/{model}", "--edit-format", "diff", *flags]
    command += ["--openai-api-base", base, "--message", TASK, "number.txt", "answer.txt"]
    finish_task(command, {".keep": ""}, {})


def mini_swe_agent(base, model):
    variables = {"OPENAI_API_BASE": base, "MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors"}
    command = [str(AGENTS / "mini" / "bin" / "mini"), "-m", f"openai/{model}", "-t", TASK, "-y", "--exit-immediately"]
    finish_task(command, {".keep": ""}, {**variables, "MSWEA_GLOBAL_CONFIG_DIR": "$HOME"})


def check_codex(base, model):
    codex(base, model)


def check_claude_code(base, model):
    claude_code(base, model)


def check_opencode(base, model):
    opencode(base, model)


def check_qwen_code(base, model):
    qwen_code(base, model)


def check_continue(base, model):
    continue_cli(base, model)


def check_aider(base, model):
    aider(base, model)


def check_mini_swe_agent(base, model):
    mini_swe_agent(base, model)


def check_codex_with_votes(base, model):
    codex(base, f"{VOTES}{model}")


def check_claude_code_with_votes(base, model):
    claude_code(base, f"{VOTES}{model}")


def check_opencode_with_votes(base, model):
    opencode(base, f"{VOTES}{model}")


def check_codex_with_auto(base, model):
    codex(base, f"{AUTO}{model}")


def check_claude_code_with_auto(base, model):
    claude_code(base, f"{AUTO}{model}")


def check_opencode_with_auto(base, model):
    opencode(base, f"{AUTO}{model}")
