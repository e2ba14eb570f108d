"""Drives Debian's chromium over its debugging protocol: open a file, run JavaScript in it, take pictures."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
    "about:blank",
)


class Tab:
    """One tab. `problems` collects errors, exceptions and warnings of the page, `requests` what it asked for."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self.problems: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            said = json.loads(self._socket.recv(timeout=300))
            if said.get("id") == number:
                assert "error" not in said, said["error"]
                return said["result"]
            self._heard(said)

    def _heard(self, said: dict[str, Any]) -> None:
        params = said.get("params", {})
        match said.get("method"):
            case "Runtime.exceptionThrown":
                self.problems.append(json.dumps(params["exceptionDetails"])[:600])
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.problems.append(json.dumps(params["args"])[:600])
            case "Log.entryAdded":
                self.problems.append(params["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case _:
                pass

    def run(self, code: str) -> Any:
        """Return the value of an expression, awaited."""
        said = self.send("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in said, json.dumps(said["exceptionDetails"])[:1000]
        return said["result"].get("value")

    def size(self, width: int, height: int, scale: float = 1) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )

    def dark(self, on: bool) -> None:
        value = "dark" if on else "light"
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def open(self, path: Path, fragment: str = "") -> None:
        self.send("Page.navigate", url="about:blank")
        self.send("Page.navigate", url=path.absolute().as_uri() + (f"#{fragment}" if fragment else ""))
        until = time.monotonic() + 300
        while self.run("document.documentElement?.dataset.ready || ''") != "yes":
            assert time.monotonic() < until, f"the page did not get ready: {self.problems}"
            time.sleep(0.02)

    def picture(self, path: Path, whole: bool = False) -> None:
        if whole:
            self.size(self.run("innerWidth"), min(16000, self.run("document.documentElement.scrollHeight")))
        self.run("new Promise(f => requestAnimationFrame(() => requestAnimationFrame(f)))")
        said = self.send("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(said["data"]))


@contextlib.contextmanager
def tab() -> Iterator[Tab]:
    """Start a browser and yield its one tab."""
    from websockets.sync.client import connect

    assert BROWSER is not None
    with tempfile.TemporaryDirectory(prefix="plait-chromium-", ignore_cleanup_errors=True) as folder:
        command = [BROWSER, f"--user-data-dir={folder}", *_FLAGS]
        with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as browser:
            try:
                assert browser.stderr is not None
                found = None
                for line in browser.stderr:
                    found = re.search(r"ws://[\d.:]+", line)
                    if found:
                        break
                assert found is not None, "the browser did not start"
                with connect(_page(found[0].removeprefix("ws://")), max_size=None) as socket:
                    yield Tab(socket)
            finally:
                browser.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    browser.communicate(timeout=10)  # reads on, so that it can end
                browser.kill()


def _page(host: str) -> str:
    import urllib.request

    until = time.monotonic() + 300
    while time.monotonic() < until:
        with urllib.request.urlopen(f"http://{host}/json/list") as answer:
            for each in json.load(answer):
                if each["type"] == "page":
                    return each["webSocketDebuggerUrl"]
        time.sleep(0.05)
    raise AssertionError("the browser has no page")
