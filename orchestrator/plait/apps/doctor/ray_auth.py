"""Whether a Ray cluster lets us in: asks its head for a sign of life, as a client without Ray or gRPC.

Knows as much of HTTP/2 and gRPC as one request with an empty message takes. What follows from the answer is said by
`checks.py`.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Literal

__all__ = ["Entry", "ask_entry"]

Entry = Literal["open", "refused", "unknown"]
"""`unknown`: it answers in no way that can be understood, for example over TLS."""

_METHOD = b"/ray.rpc.NodeInfoGcsService/CheckAlive"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_STREAM, _END_HEADERS = 1, 4
_UNAUTHENTICATED = b"grpc-status\x0216"  # as gRPC's servers write it: names and values without compression


def ask_entry(host: str, port: int, timeout: float = 3.0) -> Entry:
    """Ask the head at an address whether it takes us as Ray would come: with a token only where `RAY_AUTH_MODE=token`.

    Raises `OSError` if nobody answers there.
    """
    with socket.create_connection((host, port), timeout=timeout) as link:
        try:
            link.sendall(_request(f"{host}:{port}", _token()))
            answer = _answer(link, time.monotonic() + timeout)
        except OSError:
            return "unknown"
    if answer is None:
        return "unknown"
    return "refused" if _UNAUTHENTICATED in answer or b"AuthToken" in answer else "open"


def _token() -> str:
    """Return the token that Ray would send; empty if it would send none, or finds none."""
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        return ""
    given = os.environ.get("RAY_AUTH_TOKEN", "")
    if given:
        return given.strip()
    path = os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token"
    try:
        return Path(path).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _request(authority: str, token: str) -> bytes:
    """Return a whole connection's worth: preface, settings, one request with an empty message (RFC 9113, RFC 7541)."""
    fields = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", _METHOD),
        (b":authority", authority.encode("idna")),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    ]
    if token:
        fields.append((b"authorization", b"Bearer " + token.encode()))
    block = b"".join(b"\x00" + _string(name) + _string(value) for name, value in fields)
    head = _frame(_SETTINGS, 0, 0, b"") + _frame(_HEADERS, _END_HEADERS, 1, block)
    return _PREFACE + head + _frame(_DATA, _END_STREAM, 1, bytes(5))


def _string(text: bytes) -> bytes:
    """Return a literal of HPACK: its length with a prefix of 7 bits, then itself."""
    length = len(text)
    if length < 127:
        return bytes([length]) + text
    out, rest = bytearray([127]), length - 127
    while rest >= 128:
        out.append(rest % 128 + 128)
        rest //= 128
    return bytes([*out, rest]) + text


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _answer(link: socket.socket, until: float) -> bytes | None:
    """Return the headers, data and trailers of the answer; `None` if it is none of HTTP/2, or not whole in time."""
    got, answer = b"", b""
    while (left := until - time.monotonic()) > 0:
        link.settimeout(left)
        more = link.recv(65_536)
        if not more:
            return None
        got += more
        while len(got) >= 9 and len(got) >= 9 + (size := int.from_bytes(got[:3], "big")):
            kind, flags, stream = got[3], got[4], int.from_bytes(got[5:9], "big")
            if stream == 1 and kind in (_DATA, _HEADERS):
                answer += got[9 : 9 + size]
                if flags & _END_STREAM:
                    return answer
            got = got[9 + size :]
    return None
