"""Fields of requests that a planner has no option for, several choices, and TLS."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest

from plait.workers.scripted import Reply

openai: Any = pytest.importorskip("openai")
ASK: Any = [{"role": "user", "content": "?"}]


async def test_what_a_planner_has_no_option_for_is_said(serve: Any) -> None:
    async with serve("fine") as served:
        client = served.client()
        raw = client.chat.completions.with_raw_response
        plain = await raw.create(model="plait/single", messages=ASK, temperature=0.3, max_tokens=5)
        assert "x-plait-ignored" not in plain.headers
        overruled = await raw.create(model="plait/single:answer.temperature=0.1", messages=ASK, temperature=0.3)
        assert overruled.headers["x-plait-ignored"] == "temperature"
        plan = {"steps": [{"name": "a", "op": {"kind": "think", "prompt": "x"}}], "output": "a"}
        planned = await raw.create(
            model="q", messages=ASK, temperature=0.3, top_p=0.9, stream=True, extra_body={"plait": {"plan": plan}}
        )
        assert planned.headers["x-plait-ignored"] == "temperature, top_p"
        async for _ in planned.parse():
            pass
        response = await client.responses.with_raw_response.create(
            model="plait/single:answer.temperature=0.1", input="x", temperature=0.3
        )
        assert response.headers["x-plait-ignored"] == "temperature"


async def test_several_choices_are_several_calls(serve: Any, monkeypatch: Any) -> None:
    async with serve("one two") as served:
        client, seeds = served.client(), []
        submit = served.service.orchestrator.submit

        def noted(request: Any, **options: Any) -> Any:
            seeds.append(request.seed)
            return submit(request, **options)

        monkeypatch.setattr(served.service.orchestrator, "submit", noted)
        said = await client.chat.completions.create(model="plait/single", messages=ASK, n=3)
        assert [choice.index for choice in said.choices] == [0, 1, 2]
        assert [choice.message.content for choice in said.choices] == ["one two"] * 3
        one = await client.chat.completions.create(model="plait/single", messages=ASK)
        assert said.usage.completion_tokens == 3 * one.usage.completion_tokens
        assert len(seeds) == 4 and len(set(seeds[:3])) == 3, "each choice is another sample"


async def test_several_choices_of_any_planner(serve: Any) -> None:
    async with serve("one two") as served:
        said = await served.client().chat.completions.create(model="plait/sample:n=2", messages=ASK, n=3)
        assert [choice.message.content for choice in said.choices] == ["one two"] * 3
        assert said.usage.completion_tokens == 3 * 2 * 2, "three votes of two calls of two tokens"


async def test_several_choices_are_streamed_side_by_side(serve: Any) -> None:
    async with serve(Reply(text="one two three", tokens_per_second=20)) as served:
        stream = await served.client().chat.completions.create(
            model="q", messages=ASK, n=3, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        texts, order = ["", "", ""], list[int]()
        for choice in (choice for chunk in chunks for choice in chunk.choices if choice.delta.content):
            texts[choice.index] += choice.delta.content
            order.append(choice.index)
        assert texts == ["one two three"] * 3
        assert order != sorted(order), "a choice waits for no other"
        ends = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
        assert ends == ["stop"] * 3 and chunks[-1].usage.completion_tokens == 9


async def test_a_choice_that_fails_ends_the_stream_and_the_others(serve: Any) -> None:
    replies = (Reply(text="no memory", finish="error", times=1), Reply(text="word " * 500, tokens_per_second=50))
    async with serve(*replies) as served:
        stream = await served.client().chat.completions.create(model="q", messages=ASK, n=3, stream=True)
        with pytest.raises(openai.APIError, match="the model's server failed"):
            async for _ in stream:
                pass
        while served.service.live:
            await asyncio.sleep(0.005)
        assert served.worker.counts["generated"] < 500


def certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate of our own for 127.0.0.1, and its key."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "plait")])
    now = dt.datetime.now(dt.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(address, critical=False)
        .sign(key, hashes.SHA256())
    )
    cert, secret = folder / "cert.pem", folder / "key.pem"
    cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    secret.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    return cert, secret


async def test_tls_with_a_certificate_of_our_own(serve: Any, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    async with serve("fine", tls_cert=cert, tls_key=key) as served:
        assert served.url.startswith("https://")
        trusting = ssl.create_default_context(cafile=str(cert))
        async with httpx.AsyncClient(verify=trusting) as http:
            client = served.client(http_client=http)
            said = await client.chat.completions.create(model="q", messages=ASK)
            assert said.choices[0].message.content == "fine"
        async with httpx.AsyncClient() as http:
            with pytest.raises(httpx.ConnectError, match=r"(?i)certificate"):
                await http.get(f"{served.url}/healthz")
        async with httpx.AsyncClient() as http:
            with pytest.raises(httpx.HTTPError):
                await http.get(f"{served.url.replace('https', 'http')}/healthz")
