"""Sixteen engines that are not there: what a plan would take, under one policy and under another."""

from __future__ import annotations

from orchestrator import Join, Plan, Plugin, Request, Sampling, Step, Think
from orchestrator.runtime.latency import Host
from orchestrator.runtime.simulate import Fault, simulate, varied


def plan(chains: int, length: int, singles: int) -> Plan:
    """Some long chains among many single steps, and a join of them all."""
    steps = [Step(name=f"single-{i}", op=_think(200)) for i in range(singles)]
    for i in range(chains):
        steps += [
            Step(name=f"chain-{i}-{j}", op=_think(200), needs=(f"chain-{i}-{j - 1}",) if j else ())
            for j in range(length)
        ]
    ends = [f"single-{i}" for i in range(singles)] + [f"chain-{i}-{length - 1}" for i in range(chains)]
    return Plan(steps=(*steps, Step(name="all", op=Join(), needs=tuple(ends))), output="all")


def _think(tokens: int) -> Think:
    return Think(prompt="x", sampling=Sampling(max_tokens=tokens))


def main() -> None:
    work = plan(chains=8, length=12, singles=2000)
    cluster = [Host(f"engine-{i}", slots=8, decode_rate=50.0) for i in range(16)]
    for policy in ("fifo", "critical-path"):
        request = Request(policies=(Plugin(name=policy),))
        report = simulate(request, plan=work, hosts=cluster, outcome=varied(0.5), seed=1)
        busy = sum(report.busy.values()) / len(report.busy)
        print(f"{policy:<14} {report.makespan:7.1f} s, engines {busy:.0%} busy, {report.usage.completion} tokens")
    # The same, with an engine that dies after ten seconds and is back after twenty more.
    report = simulate(
        Request(policies=(Plugin(name="critical-path"),)),
        plan=work,
        hosts=cluster,
        outcome=varied(0.5),
        faults=[Fault(at=10.0, worker="engine-3", down_for=20.0)],
        seed=1,
    )
    lost = sum(span.end_in == "lost" for span in report.spans)
    print(f"with a fault   {report.makespan:7.1f} s, {report.status}, {lost} attempts lost and tried again")


if __name__ == "__main__":
    main()
