"""Sixteen simulated engines: what a plan would take, under one policy and under another."""

from __future__ import annotations

from plait import Join, ModelCall, Plan, Plugin, Request, Sampling, Step
from plait_research.simulation.latency import Host
from plait_research.simulation.simulator import SimReport, Throttle, WorkerFault, simulate, varied


def plan(chains: int, length: int, problems: int, votes: int) -> Plan:
    """Some long chains of thought among many problems that are sampled several times, and a join of them all."""
    steps: list[Step] = []
    ends: list[str] = []
    for i in range(problems):
        text = f"Problem {i}: " + f"a sentence about {i}, " * 60
        ends += [f"vote-{i}-{j}" for j in range(votes)]
        steps += [Step(name=name, op=_think(text)) for name in ends[-votes:]]
    for i in range(chains):
        for j in range(length):
            after = f"chain-{i}-{j - 1}" if j else None
            steps.append(Step(name=f"chain-{i}-{j}", op=_think("and then", after)))
        ends.append(f"chain-{i}-{length - 1}")
    return Plan(steps=(*steps, Step(name="all", op=Join(), needs=tuple(ends))), output="all")


def _think(text: str, after: str | None = None) -> ModelCall:
    return ModelCall(prompt=text, after=after, sampling=Sampling(max_tokens=200))


def main() -> None:
    work = plan(chains=8, length=12, problems=200, votes=8)
    cluster = [Host(f"engine-{i}", slots=16, decode_rate=50.0, cache_tokens=100_000, tells_ids=True) for i in range(16)]

    def run(*policies: str, faults: tuple[WorkerFault | Throttle, ...] = ()) -> SimReport:
        request = Request(policies=tuple(Plugin(name=policy) for policy in policies))
        report = simulate(request, plan=work, hosts=cluster, outcome=varied(0.5), faults=faults, seed=1)
        busy = sum(report.busy.values()) / len(report.busy)
        read = report.prompt_computed / report.prompt_unique
        print(
            f"{' + '.join(policies):<28} {report.makespan:6.1f} s, engines {busy:.0%} busy, prompts read {read:.2f} ×"
        )
        return report

    run("random")
    run("critical-path")
    run("affinity", "critical-path")

    print("with an engine that dies after ten seconds and is back after twenty more:")
    report = run("affinity", "critical-path", faults=(WorkerFault(10.0, "engine-3", down_for=20.0),))
    lost = sum(span.end_in == "lost" for span in report.spans)
    print(f"  {report.status}; {lost} attempts lost, {report.usage.cancelled} tokens generated for nothing")

    print("with an engine at a fifth of its speed:")
    slow = (Throttle(0.0, "engine-5", 0.2),)
    run("affinity", "critical-path", faults=slow)
    run("affinity", "critical-path", "hedge", faults=slow)


if __name__ == "__main__":
    main()

# prints "affinity + critical-path + hedge"
# prints "14 attempts lost, 0 tokens generated for nothing"
