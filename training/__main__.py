"""`python -m training`: train, export and evaluate in one command, or one of these alone; or all again, and compare.

Only reads the command line and calls the parts; every default that matters for the result is in the part
itself.
"""

from __future__ import annotations

import argparse
import importlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .trades import TRADES

if TYPE_CHECKING:
    from . import compare

Page = Callable[[Sequence["compare.Pair"], Sequence[dict[str, Any]], str, Path], Path]
"""Writes the page of a comparison, the facts of both models and the command into a folder."""
COMMANDS = ("all", "train", "export", "evaluate", "check", "cards", "compare", "reproduce", "agree")


def device_of(name: str) -> torch.device:
    """The device asked for; `auto` takes a GPU where there is one. Ends the program if a requested GPU is missing."""
    there = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if there else "cpu")
    if name.startswith("cuda") and not there:
        raise SystemExit("--device cuda: torch sees no GPU here; use --device cpu, or install a build of torch for it")
    return torch.device(name)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    parser.add_argument("command", nargs="?", default="all", choices=COMMANDS)
    parser.add_argument("--trade", choices=list(TRADES), default="countdown", help="what is learned")
    parser.add_argument("--folder", type=Path, default=None, help="checkpoints and loss curve; build/training/SIZE")
    parser.add_argument("--model", type=Path, default=None, help="exported model; the bundled one of that size")
    parser.add_argument("--other", type=Path, default=None, help="compare: the model beside it; FOLDER/model")
    parser.add_argument("--engine", action="store_true", help="compare: on the engine, too")
    parser.add_argument("--out", type=Path, default=None, help="retraining's page, by `python -m experiments`; FOLDER")
    parser.add_argument(
        "--size", choices=["tiny", "draft", "small", "large"], default="small",
        help="0.1 and 0.4 (tiny and draft, of tables only), 1.1 or 3.2 million parameters",
    )  # fmt: skip
    parser.add_argument("--steps", type=int, default=None, help="16,000 for the small countdown model")
    parser.add_argument("--seed", type=int, default=1, help="of training; evaluate a trade: of the questions drawn")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--fresh", action="store_true", help="ignore an existing checkpoint")
    parser.add_argument("--compile", action="store_true", help="compile the forward pass (about 10 %% faster)")
    parser.add_argument("--problems", type=int, default=None, help="held-out problems; 500, to compare 1,000")
    parser.add_argument("--quick", action="store_true", help="evaluate: serial and one spawn/join run only")
    parser.add_argument(
        "--text", type=Path, default=None, help="check: a file with one trace a line (default: generate)"
    )
    options = parser.parse_args(arguments)
    again = options.command in ("compare", "reproduce")
    trade = TRADES[options.trade]
    if options.size not in trade.sizes:
        parser.error(f"--trade {options.trade} has the sizes {', '.join(trade.sizes)}")
    prefix = f"{options.trade}-" * (options.trade != "countdown")
    options.folder = options.folder or Path("build/training") / (prefix + options.size + "-again" * again)
    options.problems = options.problems or (1000 if again else 500)
    options.other = options.other or options.folder / "model"
    options.out = options.out or options.folder
    options.model = options.model or trade.folders[options.size]
    options.steps = options.steps or trade.steps[options.size]
    return options


def check_traces(path: Path | None, seed: int, count: int = 10_000) -> int:
    """Check the traces of a file, or freshly generated ones; returns how many are wrong."""
    from .check import Wrong, check
    from .generate import draw_trace
    from .vocab import decode

    rng = random.Random(seed)
    texts = path.read_text().splitlines() if path else (decode(draw_trace(rng).ids) for _ in range(count))
    modes: Counter[str] = Counter()
    for number, text in enumerate(texts, 1):
        try:
            modes[check(text)] += 1
        except Wrong as error:
            modes["wrong"] += 1
            print(f"trace {number}: {error}")
    print(", ".join(f"{mode} {n}" for mode, n in sorted(modes.items())))
    return modes["wrong"]


def check_cards(count: int, seed: int) -> int:
    """Measure the figures of all model cards again, on other questions, and say which differ; returns 1 if any does."""
    from . import cards

    worse = 0
    for trade, size in cards.shipped():
        print(f"{TRADES[trade].folders[size].name}:", flush=True)
        for each in cards.compare(trade, size, count, 90_211 + seed):
            print(f"  {each}", flush=True)
            worse += not each.agrees
    return int(worse > 0)


def main(arguments: list[str] | None = None, write: Page | None = None) -> int:
    """Run the command; 0 when all went well."""
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    if options.command == "agree":
        from . import agreement, export

        if options.trade == "tables":
            folders = TRADES["tables"].folders
            drafts = {folders[size].name: export.load(folders[size]) for size in ("draft", "tiny")}
            print(agreement.tables_report(drafts, export.load(options.model), options.problems))
            return 0
        small, large = (export.load(TRADES["countdown"].folders[size]) for size in ("small", "large"))
        print(agreement.report(small, large, options.problems))
        return 0
    if options.command == "cards":
        return check_cards(options.problems, options.seed)
    if options.command == "check":
        return int(check_traces(options.text, options.seed) > 0)
    from . import evaluate, export, train

    trade = TRADES[options.trade]
    device = device_of(options.device)
    config = train.TrainConfig(
        steps=options.steps,
        seed=options.seed,
        compile=options.compile,
        model=trade.sizes[options.size],
        trade=options.trade,
    )
    if options.command in ("all", "train", "reproduce"):
        train.run(config, options.folder, device, fresh=options.fresh)
    if options.command in ("all", "export", "reproduce"):
        state = train.resume(config, options.folder / "last.pt", device)
        facts = {
            "steps": state.step,
            "tokens": state.tokens,
            "seconds": round(state.seconds),
            "seed": config.seed,
        }
        to = options.other if options.command == "reproduce" else options.model
        export.export(state.model, to, facts, trade)
        flags = [f"--size {options.size}"] * (options.size != "small") + ["--compile"] * options.compile
        if options.trade == "countdown":
            export.write_card(state.model, to, " ".join(["python -m training", *flags]), facts, evaluate.TABLE)
        print(f"{to}: step {state.step}, {state.tokens:,} tokens")
    if options.command in ("all", "evaluate") and trade.report:
        drawn = () if options.seed == 1 else (options.seed,)
        made = importlib.import_module(trade.report).report
        report = made(export.load(options.model, device), options.problems, *drawn)
        print(report)
        evaluate.put_table(report, options.model / "README.md")
    elif options.command in ("all", "evaluate"):
        rows = evaluate.evaluate(export.load(options.model, device), options.problems, options.quick)
        evaluate.save_rows(rows, options.folder / "evaluation.json")
        if not options.quick:
            evaluate.update_card(rows, options.model / "README.md")
    if options.command in ("compare", "reproduce"):
        compare_models(options, device, write)
    return 0


def compare_models(options: argparse.Namespace, device: torch.device, write: Page | None) -> None:
    """Compare two exported models, and write the page or print what came of it."""
    from . import compare

    folders = (options.model, options.other)
    kept = compare.Kept(options.folder / "compared.json")
    pairs = compare.compare(folders, options.problems, kept, device, options.engine)
    if write is None:
        claims, rows, _ = compare.findings(pairs)
        print("\n".join([*claims, *(" | ".join(row) for row in rows)]))
        return
    flags = [f"--size {options.size}"] * (options.size != "small") + ["--compile"] * options.compile
    flags += ["--engine"] * options.engine + [f"--problems {options.problems}", f"--out {options.out}"]
    command = f"python -m experiments retraining {' '.join(flags)}"
    page = write(pairs, [compare.facts_of(folder) for folder in folders], command, options.out)
    print(page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    raise SystemExit(main())
