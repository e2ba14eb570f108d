"""Breaks of published methods, one at a time: an oracle that holds a method fails when the method is broken.

`python -m tests.oracles.mutate` prints the table of methods, breaks and oracles. A break is a piece of a source file
and what stands in its place. The changed source runs as a second module, and its functions and constants are put into
the first one, so that everything that imported them runs the broken code.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from tests.oracles.harness import Oracle, oracles

RESEARCH = "plait_research.planners"
SIMPLE = (int, float, str, tuple, re.Pattern)


class Break(NamedTuple):
    """One change of a method's code, and the oracles that must see it."""

    method: str
    module: str
    old: str
    new: str
    oracles: tuple[str, ...]


def _of(method: str, module: str, *pairs: tuple[str, str], oracles: tuple[str, ...]) -> list[Break]:
    return [Break(method, module, old, new, oracles) for old, new in pairs]


BREAKS = [
    *_of(
        "llmcompiler", "plait.planners.tools.llmcompiler.parser",
        ('self._thought = thought[1].strip()', 'self._thought = ""'),
        ('raw = line[task.start : task.end] if first', 'raw = line[task.start + 1 : task.end] if first'),
        ('yield PlanTask(number, "join"', 'yield PlanTask(number + 1, "join"'),
        oracles=("llmcompiler-plans",),
    ),
    *_of(
        "llmcompiler", "plait.planners.tools.llmcompiler.binding",
        ("for name, item in pairs:", "for name, item in pairs[:1]:"),
        oracles=("llmcompiler-plans",),
    ),
    *_of(
        "skeleton", "plait.planners.split.skeleton",
        ("own if whole else (shared, *own)", "(shared, *own)"),
        ('"skeleton": outline}', '"skeleton": ""}'),
        ("number=str(point.number), text", "number=str(point.number + 1), text"),
        oracles=("sot-prompts",),
    ),
    *_of(
        "takeover", f"{RESEARCH}.takeover",
        ("<= self._share(turn)", "< self._share(turn)"),
        ("sum(other <= score", "sum(other < score"),
        ("return (1 + sum", "return (2 + sum"),
        ("/ (len(calibration) + 1)", "/ (len(calibration) + 2)"),
        oracles=("atts-takeover",),
    ),
    *_of(
        "scale", f"{RESEARCH}.scale.paper",
        ("LAST = 0.9", "LAST = 0.4"),
        ("if score > above else", "if score >= above else"),
        ('f"\\n\\n{step}\\nstep answer: "', 'f"\\n{step}: "'),
        ("else 0.5\n", "else 0.2\n"),
        ("steps[-1] = question", "pass"),
        oracles=("scale-paper",),
    ),
    *_of(
        "code-search", f"{RESEARCH}._compiled",
        ('error["message"].strip()', 'error["message"]'),
        ('int(error["line"])', 'int(error["line"]) + 1'),
        ("places.append(", "places.insert(0, "),
        oracles=("spoc-errors",),
    ),
    *_of(
        "code-search", f"{RESEARCH}.code_search.line_search",
        ("heapq.heappush(self._heap, (-score, choice))", "heapq.heappush(self._heap, (score, choice))"),
        ("self._scores[line][candidate] -= self._penalty", "pass"),
        ('closed = max(0, depth - indent - (code == "}"))', "closed = max(0, depth - indent)"),
        oracles=("spoc-search",),
    ),
    *_of(
        "mars", f"{RESEARCH}.mars",
        ("LEAST = 0.5", "LEAST = 0.3"),
        ("gamma * (2.0 if key == first", "gamma * (1.9 if key == first"),
        ("-1.0 if key == other", "0.0 if key == other"),
        ("band + 1 / math.sqrt", "band + 2 / math.sqrt"),
        ("penalty = np.diag([0.0] + [0.02]", "penalty = np.diag([0.0] + [0.5]"),
        ("keys[i] != keys[i - 1]", "keys[i] != keys[0]"),
        oracles=("mars-stop", "mars-gamma", "mars-switch"),
    ),
    *_of(
        "mars (steady vote)", f"{RESEARCH}.mars",
        ("stable: int = 3", "stable: int = 4"),
        ("self._off[place] >= self._patience", "self._off[place] > self._patience"),
        ("if at < self._warmup:", "if at <= self._warmup:"),
        oracles=("parallel-probe",),
    ),
    *_of(
        "think-summarize", f"{RESEARCH}.think_summarize",
        ('f"<think{number}>", (f"</think{number}>",)', 'f"<think{number}>", (f"</think>",)'),
        ('options["begin"], options["stop"] = f"<think{number}>"',
         'options["begin"], options["stop"] = f"<path{number}>"'),
        ('return self.dialect == "parathinker"', "return False"),
        oracles=("tokens-parathinker",),
    ),
    *_of(
        "threads (apr)", "plait.planners.threads.threads.dialects.apr",
        ('"numbers": ", ".join', '"numbers": ",".join'),
        ("f\"'{step}'\"", 'f"{step}"'),
        ("nodes[made[1]] = [made[2]", "nodes[made[1]] = [made[1]"),
        oracles=("apr-traces",),
    ),
    *_of(
        "threads", "plait.planners.threads.threads",
        ("header=header if forks else header.lstrip()", "header=header.strip()"),
        ("block, memo.after or place.name, memo.before)", "block[:1], memo.after or place.name, memo.before)"),
        ('table.open if table.replaces else ""', '""'),
        oracles=("threadweaver-contexts", "multiverse-documents", "apr-traces"),
    ),
    *_of(
        "adaptive-consistency", "plait.policies.stop.votes",
        ("if first == second or poll.votes < self.min_votes:",
         "if first == second or poll.votes < self.min_votes + 1:"),
        ("if sure >= self.confidence else None", "if sure > self.confidence + 0.02 else None"),
        ("sure = majority_probability(first, second)", "sure = majority_probability(first, 0)"),
        oracles=("adaptive-consistency",),
    ),
    *_of(
        "esc", "plait.policies.stop.votes",
        ("if self._counts[window, key] == self._size:", "if self._counts[window, key] == self._size - 1:"),
        ("self._places[branch.step] // self._size", "(self._places[branch.step] + 1) // self._size"),
        ("_Windows(self.window, places())", "_Windows(self.window + 1, places())"),
        oracles=("esc",),
    ),
    *_of(
        "deepconf", "plait_research.policies.prune.deepconf",
        ("percentile(lowest, 100.0 - self.eta)", "percentile(lowest, self.eta)"),
        ("lowest = [result.signals.lowest for", "lowest = [result.signals.tail + 1 for"),
        ("warm = join.needs[: self.warmup]\n        known.waits_for",
         "warm = join.needs[1 : self.warmup]\n        known.waits_for"),
        oracles=("deepconf-online",),
    ),
    *_of(
        "weighted", "plait.policies.merge.votes",
        ("percentile(list(scores.values()), 100.0 - self.eta)", "percentile(list(scores.values()), self.eta)"),
        ("scores[ballot.place] >= floor", "scores[ballot.place] > floor"),
        ("lambda ballot: weights[ballot.place], what", "lambda ballot: 1.0, what"),
        oracles=("deepconf-offline",),
    ),
    *_of(
        "deepconf (signals)", "plait.workers._shared.confidence",
        ("few = max(1, len(groups) // 10)", "few = max(1, len(groups) // 5)"),
        ("tail=float(groups[-1])", "tail=float(groups[0])"),
        ("lowest=float(groups.min())", "lowest=float(groups.max())"),
        oracles=("deepconf-traces",),
    ),
    *_of(
        "tool-majority", "plait.policies.merge.tool_majority",
        ("ballots = best.ballots", "ballots = roll.ballots"),
        ("best, how = find_winner(named)", "best, how = named[-1], 0"),
        ("winner=best.first.branch.name", "winner=ballots[0].branch.name"),
        oracles=("its-hub-tool-votes",),
    ),
    *_of(
        "beam", "plait.policies.search.beams",
        ("best = sorted(going, key=lambda node: (-self.tree.prior(node)",
         "best = sorted(going, key=lambda node: (self.tree.prior(node)"),
        ("[: self._options.keep]\n        return [node for node in best for",
         "[: self._options.keep + 1]\n        return [node for node in best for"),
        ("for node in best for _ in range(self._options.branch)]",
         "for node in best for _ in range(self._options.branch - 1)]"),
        oracles=("sal-beam",),
    ),
    *_of(
        "dvts", "plait_research.policies.search.trees",
        ("(node.path()[1].index - 1) // self._branch", "node.path()[1].index // self._branch"),
        ("return (-self.tree.prior(node)", "return (self.tree.prior(node)"),
        ("for beaten in going[1:]:", "for beaten in going[:1]:"),
        oracles=("sal-dvts",),
    ),
    *_of(
        "dfs", "plait.policies.search.mcts",
        ("return (-node.depth, ", "return (node.depth, "),
        ("range(self._options.back - 1 if node.gave_up else 0)", "range(self._options.back if node.gave_up else 0)"),
        ("range(self._options.back - 1 if node.gave_up else 0)", "range(0)"),
        oracles=("toolbench-dfs",),
    ),
    *_of(
        "rebase", "plait_research.policies.search.leaf_sampling",
        ("math.ceil(max(budget, 0) * weight / rest)", "math.floor(max(budget, 0) * weight / rest)"),
        ("rest = sum(weights[i:])", "rest = sum(weights)"),
        ("ranked = sorted(going, key=lambda node: (-self.tree.prior(node)",
         "ranked = sorted(going, key=lambda node: (self.tree.prior(node)"),
        ("budget -= count", "budget -= 0"),
        oracles=("rebase-shares",),
    ),
    *_of(
        "ets", "plait_research.policies.search.leaf_sampling",
        ("else 1.0 if paper else 0.25", "else 4.0 if paper else 0.25"),
        ("else 1.5 if paper else 0.0", "else 0.2 if paper else 0.0"),
        ("return [ranked[i] for i in", "return [ranked[-1 - i] for i in"),
        oracles=("ets-paper",),
    ),
    *_of(
        "particle", "plait_research.policies.search.leaf_sampling",
        ("self._options.n - (kept is not None)", "self._options.n"),
        ("particles.append(kept)", "pass"),
        ("self._reference[min(self._depth, len(self._reference) - 1)]", "self._reference[-1]"),
        ("return [self.tree.root] * max(1, self._options.n - 1)",
         "return [self.tree.root] * self._options.n"),
        ("math.log(score / (1 - score)) / temperature", "math.log(score) / temperature"),
        oracles=("its-hub-gibbs", "its-hub-odds"),
    ),
    *_of(
        "reward-model", "plait_research.tools.reward",
        ('f" {_TAG}\\n\\n") + f" {_TAG}"', 'f" {_TAG}\\n") + f" {_TAG}"'),
        ('text.replace("\\n\\n", _END) + _END', 'text.replace("\\n\\n", _END)'),
        ('step if number else f"{question} {step}"', "step"),
        ("return right / (right + wrong)", "return wrong / (right + wrong)"),
        ('for step in text.split("\\n"):', 'for step in text.split("\\n\\n"):'),
        oracles=("prm-qwen-prm", "prm-math-shepherd", "prm-rlhflow", "prm-skywork"),
    ),
    *_of(
        "bash-sql (rows)", "plait_bench.environments._intercode",
        ("common.total() / union.total()", "common.total() / len(other)"),
        ("return reward if order is None else round(order * reward, 2)", "return reward"),
        ("Counter(one) | Counter(other)", "Counter(one) + Counter(other)"),
        oracles=("intercode-sql",),
    ),
    *_of(
        "bash-sql (folders)", "plait_bench.environments._intercode",
        ("len(mine ^ right)", "len(mine - right)"),
        ("round(0.33 * same / len(new), 2) if new else 0.33", "round(0.33 * same / len(new), 2) if new else 0.0"),
        ("& 0o100)", "& 0o400)"),
        ("next((folder for folder in above if folder not in folders), name)", "name"),
        oracles=("intercode-bash",),
    ),
    *_of(
        "data-lake (scores)", "plait_bench.environments._lake_scores",
        ("abs(number * 100 - target)", "abs(number - target)"),
        ("len(answer) / len(set(hits))", "len(answer) / len(hits)"),
        ("error <= 0.01", "error <= 0.02"),
        ("return 1 / (1 + abs(", "return 1 - (0 * 1 + abs("),
        oracles=("kramabench-scores",),
    ),
    *_of(
        "data-lake (tables)", "plait_bench.environments._lake_scores",
        ("abs_tol=0.01", "abs_tol=0.001"),
        ("    if ignore_order:", "    if not ignore_order:"),
        ("columns[i] if columns else ()", "columns[0] if columns else ()"),
        ("[0 if none else read(cell)", "[read(cell)"),
        oracles=("spider2-tables",),
    ),
    *_of(
        "repository", "plait_bench.environments.repository",
        ("'SKIPPED'} for test in kept", "'ERROR'} for test in kept"),
        ('"FULL" if passed == len(fixed)', '"FULL" if passed'),
        ("statuses.get(test) in _PASSES for test in fixed", 'statuses.get(test) == "PASSED" for test in fixed'),
        ('line.replace(" - ", " ")', "line"),
        ('statuses[words[1]] = words[0]', 'statuses.setdefault(words[1], words[0])'),
        oracles=("swe-bench-status",),
    ),
    *_of(
        "rollouts (advantages)", "plait_research.rollouts.advantages",
        ("stdev(of) + epsilon", "stdev(of)"),
        ("(reward - mean) / spread", "reward - mean"),
        ("(fmean(of), stdev(of)", "(max(of), stdev(of)"),
        oracles=("verl-grpo", "trl-grpo"),
    ),
    *_of(
        "rollouts (records)", "plait_research.rollouts.adapters",
        ("_credit(record) * (1 + _VERL_EPSILON)", "_credit(record) * 2"),
        ('f"{record.rollout}/{record.index}" if weighty else record.group', "record.group"),
        ('out["advantage"].append(list(record.token_advantages[start:end]))',
         'out["advantage"].append([0.0] * (end - start))'),
        oracles=("verl-records", "trl-records"),
    ),
]  # fmt: skip
DATA = {"tokens-multiverse", "tokens-npr", "tokens-threadweaver", "trl-logprobs"}
"""Tokens that stand in a table, and rollouts that are kept: no code of ours computes them."""


def sees(oracle: Oracle) -> bool:
    """Return whether an oracle is red: it differs in other cases than its facts say, or raises."""
    head, facts = oracle.facts()
    wrong = 0
    for fact in facts:
        try:
            wrong += not oracle.same(fact["out"], oracle.mine(fact["in"], fact["out"]))
        except Exception:
            return True
        if wrong > head["differ"]:
            return True
    return wrong != head["differ"]


@contextlib.contextmanager
def broken(module: str, old: str, new: str) -> Iterator[None]:
    """Run with one piece of a module's source replaced. Raises `LookupError` unless the piece is there once."""
    real = importlib.import_module(module)
    source = Path(str(real.__file__)).read_text(encoding="utf-8")
    if source.count(old) != 1:
        raise LookupError(f"{module} has {source.count(old)} times {old!r}")
    other = types.ModuleType(module)
    other.__dict__.update({"__file__": real.__file__, "__package__": real.__package__, "__path__": None})
    sys.modules[module] = other  # dataclasses and pydantic look their module up
    try:
        exec(compile(source.replace(old, new), str(real.__file__), "exec"), other.__dict__)
    finally:
        sys.modules[module] = real
    with contextlib.ExitStack() as undo:
        _swap(real, other, undo)
        yield


def _swap(real: Any, other: Any, undo: contextlib.ExitStack) -> None:
    """Give the functions, constants and default options of a module or class those of another."""
    for name, value in list(vars(real).items()):
        there = vars(other).get(name)
        plain, changed = _function(value), _function(there)
        if isinstance(plain, types.FunctionType) and isinstance(changed, types.FunctionType):
            if plain.__module__ == changed.__module__ and plain.__code__.co_freevars == changed.__code__.co_freevars:
                for part in ("__code__", "__defaults__", "__kwdefaults__"):
                    undo.callback(setattr, plain, part, getattr(plain, part))
                    setattr(plain, part, getattr(changed, part))
        elif inspect.isclass(value) and inspect.isclass(there) and value.__module__ == there.__module__:
            if not name.startswith("__"):
                _swap(value, there, undo)
        elif inspect.ismodule(real) and isinstance(value, SIMPLE) and name.isupper() and value != there:
            undo.callback(setattr, real, name, value)
            setattr(real, name, there)
    if inspect.isclass(real) and issubclass(real, BaseModel):
        for name, field in real.model_fields.items():
            if field.default != other.model_fields[name].default:
                raise LookupError(f"a break of the default {real.__name__}.{name} is not supported")


def _function(value: Any) -> Any:
    """Return the function behind a method, property or cache."""
    for name in ("__func__", "fget", "func", "__wrapped__", "wrapped"):
        inner = getattr(value, name, None)
        if not isinstance(value, types.FunctionType) and isinstance(inner, types.FunctionType):
            return inner
    return value


def reds(each: Break) -> list[str]:
    """Return the oracles that see a break."""
    known = oracles()
    with broken(each.module, each.old, each.new):
        return [name for name in each.oracles if sees(known[name])]


def main(say: Callable[[str], Any] = print) -> int:
    """Print each break with the oracles that see it; return the number that none sees."""
    green = 0
    for each in BREAKS:
        found = reds(each)
        green += not found
        what = f"{each.old[:58]!r} → {each.new[:58]!r}"
        say(f"{'red  ' if found else 'GREEN'} {each.method:24} {what} {', '.join(found)}")
    return green


if __name__ == "__main__":
    sys.exit(main())
