"""Cost limits of requests, and prices of models: from the settings, or from genai-prices for a hosted server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from ...core.budget import Budget
from ...core.errors import UsageError
from ...core.events import Job
from ...core.interfaces import Progress, Worker
from ...core.ops import Plugin
from ...core.plan import Plan
from ...core.result import Failure, Price, Result
from ..driver.worker_proxy import WorkerProxy
from .config import Config

DEFAULT = "default"
"""Name in `[prices]` of the default entry for models and workers."""
_MILLION = 1_000_000
_HERE = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "")


class PricingWorker(WorkerProxy):
    """A model worker whose results include their cost. It delegates everything else to the inner worker."""

    def __init__(self, worker: Worker, config: Config) -> None:
        self._config = config
        super().__init__(worker)

    def look(self) -> None:
        """Copy the inner worker's offer, and look up the prices of its models."""
        super().look()
        self.prices = {**table(self._config, [self.inner]), **self.prices}

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        """Run the job on the inner worker, and add its cost if the worker reports none."""
        price = self.prices.get((job.op.model if job.op.kind == "think" else None) or "") or self.prices.get("")
        clock = asyncio.get_running_loop().time
        began = clock()
        async for item in self.inner.run(job):
            if not isinstance(item, Progress) and price is not None and not item.usage.cost:
                cost, sources = price.of(item.usage, clock() - began), item.usage.sources
                sources = sources.model_copy(update={"cost": price.source(sources)})
                usage = item.usage.model_copy(update={"cost": cost, "sources": sources})
                item = item.model_copy(update={"usage": usage})
            yield item


def priced(workers: Sequence[Worker], config: Config) -> list[Worker]:
    """Return workers whose results include their cost, if prices may be known."""
    return [PricingWorker(worker, config) if config.prices or _hosted(worker, config) else worker for worker in workers]


def table(config: Config, workers: Sequence[Worker]) -> dict[str, Price]:
    """Return the prices of workers' models by name; the empty name is the default model."""
    prices: dict[str, Price] = {name: price for name, price in config.prices.items() if name != DEFAULT}
    for worker in workers:
        own = str(getattr(worker, "model", None) or config.model)
        names = dict.fromkeys((own, Path(own).name, *getattr(worker, "models", ()), worker.name, DEFAULT))
        price = next((config.prices[name] for name in names if name in config.prices), None)
        base = _hosted(worker, config)
        if price is None and base:
            price = next((published for name in names if (published := _published(name, base)) is not None), None)
        if price is not None:
            prices.setdefault("", price)
    return prices


def demand(
    budget: Budget,
    plan: Plan | None,
    workers: Sequence[Worker] | None,
    config: Config,
    planner: Plugin | None = None,
) -> None:
    """Raise `UsageError` if no worker has a price but a request, its plan, or an agent in its planner's options has a
    cost limit."""
    limited = budget.cost is not None or (plan is not None and _limits_cost(plan))
    if not limited and (planner is None or not _agents_limit_cost(planner.options)):
        return
    if workers is None:
        base = config.base_url or ""
        known = bool(config.prices) or any(_published(name, base) for name in (config.model, Path(config.model).name))
    else:
        known = any(getattr(worker, "prices", None) or table(config, [worker]) for worker in workers)
    if not known:
        raise UsageError(
            "`cost` limits nothing here: no worker has a price. Say what the model costs in the settings, as in "
            "`[prices.default]` with `input = 2.5` and `output = 10.0` (per million tokens) in plait.toml, or install "
            "'plait[prices]' for the prices of hosted models"
        )


def _limits_cost(plan: Plan) -> bool:
    return any(
        budget is not None and budget.cost is not None for budget in (plan.budget, *(s.budget for s in plan.steps))
    )


def _agents_limit_cost(options: object) -> bool:
    match options:
        case {"budget": {"cost": int() | float()}}:
            return True
        case dict():
            return any(map(_agents_limit_cost, cast("dict[str, object]", options).values()))
        case list() | tuple():
            return any(map(_agents_limit_cost, cast("list[object]", options)))
        case _:
            return False


def _hosted(worker: Worker, config: Config) -> str:
    """Return the address of a worker's server, if the server is remote."""
    base = getattr(worker, "base_url", None) or (config.base_url if config.worker == "http" else None)
    return base if isinstance(base, str) and (urlsplit(base).hostname or "") not in _HERE else ""


@lru_cache(maxsize=64)
def _published(model: str, base_url: str) -> Price | None:
    """Return the price of a model at a provider's address from the tables of genai-prices, without tiers for very long
    prompts. `None` without the package, for an unknown address, and for an unknown model."""
    if not base_url:
        return None
    try:
        from genai_prices import Usage, calc_price
    except ImportError:
        return None

    def rate(**tokens: int) -> float | None:
        with contextlib.suppress(LookupError, ValueError):
            usage = Usage(**tokens)
            price = calc_price(usage, model_ref=model, provider_api_url=base_url).total_price
            return round(float(price) * _MILLION / 1000, 6)
        return None

    read, write = rate(input_tokens=1000), rate(output_tokens=1000)
    if read is None or write is None:
        return None
    return Price(input=read, cached=rate(input_tokens=1000, cache_read_tokens=1000), output=write)


def rates(config: Config) -> Mapping[str, Price]:
    """Return the prices of the models named in the settings; the empty name is the configuration's own model."""
    prices = {name: price for name, price in config.prices.items() if name != DEFAULT}
    for name in (config.model, Path(config.model).name, config.worker, DEFAULT):
        if name in config.prices:
            return {**prices, "": config.prices[name]}
        if (published := _published(name, config.base_url or "")) is not None:
            return {**prices, "": published}
    return prices
