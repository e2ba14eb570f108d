"""guidellm, which measures a server of models."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from expected import FINE

VERSION = version("guidellm")


def measured(base, model, profile, route="/v1/chat/completions"):
    with tempfile.TemporaryDirectory() as folder:
        data, out = Path(folder) / "asked.jsonl", Path(folder) / "report.json"
        data.write_text("".join(json.dumps({"prompt": f"hello {n}"}) + "\n" for n in range(4)))
        command = [sys.executable, "-m", "guidellm", "run", "--disable-console"]
        target = f"target={base.removesuffix('/v1')},api_key=none"
        for name, value in (
            ("backend", f"kind=openai_http,{target},model={model},request_format={route}"),
            ("profile", profile),
            ("constraint", "kind=max_requests,count=4"),
            ("data", f"kind=json_file,path={data}"),
            ("output", f"kind=json,path={out}"),
        ):
            command += [f"--{name}", value]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert out.exists(), done.stderr[-500:]
        requests = json.loads(out.read_text())["benchmarks"][0]["requests"]
    assert len(requests["successful"]) == 4 and not requests["errored"], requests
    return requests["successful"]


def check_one_after_another(base, model):
    assert all(FINE.within(request["output"]) for request in measured(base, model, "kind=synchronous"))


def check_side_by_side(base, model):
    requests = measured(base, model, "kind=concurrent,streams=2")
    assert all(request["output_tokens"] for request in requests)


def check_text_completions(base, model):
    requests = measured(base, model, "kind=synchronous", "/v1/completions")
    assert all(FINE.within(request["output"]) for request in requests)
