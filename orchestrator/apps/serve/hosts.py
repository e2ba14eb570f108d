"""Which requests may come from where: a server without keys is for this machine, and not for pages of the web.

A page that a browser shows can send requests to `localhost`, and with a name that its owner has pointed to 127.0.0.1
(DNS rebinding) it can read the answers too. It cannot choose the headers `Host` and `Origin`, nor send JSON as JSON
without asking first.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.requests import Request

from .errors import ApiError
from .settings import LOOPBACK, Settings

__all__ = ["HostGuard"]


class HostGuard:
    """Turns away requests for other hosts, of foreign pages, and of other kinds than JSON.

    With tenants every request needs a key, which no foreign page has: then only `allowed_hosts` are checked, if any.
    """

    def __init__(self, settings: Settings) -> None:
        self._on = not settings.tenants or bool(settings.allowed_hosts)
        self._any = settings.open and not settings.allowed_hosts
        self._hosts = {*LOOPBACK, settings.host.lower(), *(each.lower() for each in settings.allowed_hosts)}

    def check(self, request: Request) -> None:
        """Raise `ApiError` for a request that is turned away."""
        if not self._on:
            return
        said = request.headers.get("host", "")
        if not self._any and _name(f"//{said}") not in self._hosts:
            raise ApiError(
                421, f"this server does not answer for the host {said[:200]!r}: name it in `allowed_hosts`",
                code="host_not_allowed",
            )  # fmt: skip
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != said.lower():
            raise ApiError(403, f"pages of {origin[:200]!r} may not ask this server", code="origin_not_allowed")
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if request.method == "POST" and request.url.path != "/login" and kind not in ("", "application/json"):
            raise ApiError(415, "send JSON, with `Content-Type: application/json`", code="not_json")


def _name(address: str) -> str:
    """Return the host of an address without its port; empty for what is none."""
    try:
        return (urlsplit(address).hostname or "").lower()
    except ValueError:  # such as an open bracket
        return ""
