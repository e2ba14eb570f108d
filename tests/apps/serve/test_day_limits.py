"""What a tenant may use on a day is a limit, however many requests it sends at once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, strategies as st

from plait.core.result import Usage
from plait.workers import scripted
from plait.workers.scripted import Reply
from plait_server.admission import Allowance
from plait_server.documents import Documents
from plait_server.settings import Tenant
from plait_server.tenants import hashed, new_key, used_by

ANN = new_key()
ASK = {"model": "q", "messages": [{"role": "user", "content": "x"}]}
PRICES = {"prices": {"default": {"input": 0.0, "output": 1e6}}}


def ann(**limits: Any) -> tuple[Tenant, ...]:
    return (Tenant(name="ann", keys=(hashed(ANN),), **limits),)


@pytest.fixture(autouse=True)
def _steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker tells one token at a time, however late it is: else, on a busy machine, one report has many tokens,
    and by one report of each attempt a limit may be passed."""

    as_fast_as_read = scripted._Live.due

    async def due(live: Any) -> int:
        if live._rate is None:
            return await as_fast_as_read(live)
        await live.sleep(1 / live._rate)
        if live.stopped or live._done == live._count:
            return 0
        live._done += 1
        return 1

    monkeypatch.setattr(scripted._Live, "due", due)


async def _flood(served: Any, many: int, **body: Any) -> tuple[list[int], int]:
    """Send requests at once; return the statuses, and the tokens of all that were answered."""
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {ANN}"}, timeout=300) as http:
        send = [http.post(f"{served.base}/chat/completions", json={**ASK, **body}) for _ in range(many)]
        said = await asyncio.gather(*send)
    tokens = sum(each.json()["usage"]["completion_tokens"] for each in said if each.status_code == 200)
    return [each.status_code for each in said], tokens


async def test_a_tenant_cannot_fill_the_journals(serve, tmp_path: Path):
    """Ann's runs are refused once they have written as much as they may in a day; Bob's are not."""
    bob = new_key()
    tenants = (*ann(), Tenant(name="bob", keys=(hashed(bob),)))
    long = {"messages": [{"role": "user", "content": "".join(map(chr, range(0x4E00, 0x7E00)))}]}
    async with serve(*["fine"] * 20, tenants=tenants, journal_bytes_per_tenant=100_000, journal=tmp_path) as served:
        for _ in range(10):
            (status,), _ = await _flood(served, 1, **long)
            if status != 200:
                break
            served.service.orchestrator._driver.recorder.flush()
        async with httpx.AsyncClient(timeout=30) as http:
            asked = [
                await http.post(
                    f"{served.base}/chat/completions",
                    json=ASK,
                    headers={"authorization": f"Bearer {key}"},
                )
                for key in (ANN, bob)
            ]
    assert [each.status_code for each in asked] == [429, 200]
    error = asked[0].json()["error"]
    assert (
        error["code"] == "insufficient_quota" and "bytes to journals today, and 100,000 are allowed" in error["message"]
    )
    assert 0 < int(asked[0].headers["retry-after"]) <= 86_401


@pytest.mark.parametrize("rate", [0, 400], ids=["at once", "slowly"])
async def test_forty_requests_at_once_do_not_pass_the_days_tokens(serve, rate: float):
    reply = Reply(text="word " * 201, **({"tokens_per_second": rate} if rate else {}))
    async with serve(reply, tenants=ann(tokens_per_day=1000)) as served:
        statuses, tokens = await _flood(served, 40, max_tokens=201)
        user = served.service.tenants.users["ann"]
        assert set(statuses) <= {200, 429}
        # A run that is cut ends with the report that reaches its limit: a token where they come slowly, else up to 16.
        most = 1000 + (0 if rate else 16 * statuses.count(200))
        assert 800 <= tokens <= most and user.used[0] == tokens
        assert all(not each.holdings for each in user._allowances), "nothing stays reserved"
        statuses, more = await _flood(served, 40)
        assert tokens + more <= most


async def test_requests_at_once_do_not_pass_the_days_cost(serve):
    reply = Reply(text="word " * 50, tokens_per_second=400)
    async with serve(reply, tenants=ann(cost_per_day=100.0), config=PRICES) as served:
        statuses, tokens = await _flood(served, 12)
        assert set(statuses) <= {200, 429}
        assert 50 <= tokens <= 100 + 12, "a run that is cut ends with the token that reaches its limit"
        assert served.service.tenants.users["ann"].used[1] == pytest.approx(tokens)
        assert set((await _flood(served, 3))[0]) == {429}


async def test_a_run_that_ends_gives_back_what_it_did_not_use(serve):
    """A short run beside a long one: the long one may use all but what the short one has used."""
    replies = [Reply(when="long", text="word " * 90, tokens_per_second=60), Reply(text="one two", tokens_per_second=60)]
    async with serve(*replies, tenants=ann(tokens_per_day=100)) as served:
        async with httpx.AsyncClient(headers={"authorization": f"Bearer {ANN}"}, timeout=300) as http:
            url = f"{served.base}/chat/completions"
            long = asyncio.create_task(
                http.post(url, json={"model": "q", "messages": [{"role": "user", "content": "long"}]})
            )
            while not served.service.live:
                await asyncio.sleep(0.005)
            short = await http.post(url, json=ASK)
            assert short.json()["usage"]["completion_tokens"] == 2
            assert (await long).json()["usage"]["completion_tokens"] == 91


async def test_a_request_that_is_refused_holds_nothing(serve):
    async with serve("fine", tenants=ann(tokens_per_day=10)) as served:
        async with httpx.AsyncClient(headers={"authorization": f"Bearer {ANN}"}) as http:
            plan = {"steps": [{"name": "a", "op": {"kind": "call", "tool": "none"}}], "output": "a"}
            said = await http.post(
                f"{served.base}/responses", json={"model": "q", "input": "x", "plait": {"plan": plan}}
            )
            assert said.status_code == 400
        assert served.service.tenants.users["ann"]._allowances[0].held == 0
        assert (await _flood(served, 1))[0] == [200]


def test_tokens_that_nobody_counted_count():
    class Ended:
        usage = Usage(completion=3, uncounted=7, cost=0.5)

    assert used_by(Ended()) == (10, 0.5)  # pyright: ignore[reportArgumentType]
    assert used_by(None) == (0, 0.0)


class _Run:
    """A handle whose run obeys its limit at once."""

    def __init__(self, limit: float) -> None:
        self._limit, self.used = limit, 0.0
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def standing(self) -> _Run:
        return self

    def committed(self, name: str) -> float:
        return self.used

    def limit(self, name: str = "", *, tokens: float | None = None) -> Any:
        if tokens is not None:
            self._limit = tokens
        return self._limit


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 300), st.floats(0, 1)), max_size=40), st.integers(1, 500))
def test_what_runs_hold_and_what_is_used_never_exceed_the_day(moves: list[tuple[int, int, float]], day: int):
    async def play() -> None:
        account, used, runs = Allowance("tokens"), 0.0, list[tuple[Any, _Run]]()
        for what, amount, part in moves:
            if what == 0:
                held = await account.reserve(amount, day - used)
                if held is not None:
                    assert 0 < held.held <= amount
                    runs.append((held, _Run(held.held)))
                    await account.begun(held, runs[-1][1])  # pyright: ignore[reportArgumentType]
            elif runs:
                holding, run = runs[amount % len(runs)]
                run.used += part * max(0.0, run._limit - run.used) if what == 1 else 0.0
                if what == 2:
                    runs.remove((holding, run))
                    used += run.used
                    account.settle(holding, run.used)
            assert used + account.held <= day + 1e-6
            assert all(run.used <= run._limit <= holding.held + 1e-6 for holding, run in runs)

    asyncio.run(play())


@pytest.mark.parametrize("limit", [{"keep_responses": 4}, {"keep_bytes": 8000}])
async def test_a_tenant_does_not_push_anothers_responses_out(serve, limit: dict[str, int]):
    bob = new_key()
    tenants = (*ann(), Tenant(name="bob", keys=(hashed(bob),)))
    async with serve("fine", tenants=tenants, **limit) as served, httpx.AsyncClient() as http:

        async def make(key: str) -> str:
            headers = {"authorization": f"Bearer {key}"}
            said = await http.post(f"{served.base}/responses", headers=headers, json={"model": "q", "input": "x"})
            return said.json()["id"]

        async def there(key: str, name: str) -> bool:
            headers = {"authorization": f"Bearer {key}"}
            return (await http.get(f"{served.base}/responses/{name}", headers=headers)).status_code == 200

        his = await make(bob)
        hers = [await make(ANN) for _ in range(8)]
        assert await there(bob, his) and await there(ANN, hers[-1])
        assert not await there(ANN, hers[0])


def test_documents_of_one_owner_do_not_push_anothers_out(tmp_path: Path):
    documents = Documents(tmp_path, "response")
    documents.put("his", "bob", b"x")
    for number in range(20):
        documents.put(f"hers-{number}", "ann", b"x")
    documents.trim(5, 1 << 30)
    there = [name for name in ("his", *(f"hers-{number}" for number in range(20))) if documents.get(name)]
    assert len(there) == 5 and "his" in there
