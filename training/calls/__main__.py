"""`python -m training.calls`: teach SmolLM2 how many calls a question wants. It resumes from a checkpoint.

python -m training.calls --minutes 50      # train; adapter, checkpoint and curve go to build/training/calls
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plait.runtime.client.models import folder_of

from ..train import stopping
from . import lora
from .generate import Example, draw
from .prompts import prompt

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
FOLDER = Path("build/training/calls")
HELD_OUT = 16
WINDOW = 4
"""Each step takes questions of similar length out of a larger draw (this factor), so that little is padded."""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m training.calls", description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument(
        "--model", type=Path, default=None, help="folder of SmolLM2-135M-Instruct; that of `plait model`"
    )
    parser.add_argument("--steps", type=int, default=100, help="the learning rate falls until then")
    parser.add_argument("--minutes", type=float, default=None, help="stop after so long")
    parser.add_argument("--batch", type=int, default=4, help="questions a step")
    parser.add_argument("--first", type=int, default=16, help="first layer that has adapters")
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate of AdamW")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(arguments)


class Batches:
    """Questions as ids: prompt and plan of each, and which ids are the plan's."""

    def __init__(self, model: Path) -> None:
        from transformers import AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(model)

    def ids(self, example: Example) -> tuple[list[int], int]:
        """Return the ids of a question with its plan, and how many of them are the prompt."""
        head = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{prompt(example)}<|im_end|>\n"
        head += "<|im_start|>assistant\n"
        before = self.tokenizer(head, add_special_tokens=False).input_ids
        plan = self.tokenizer(f"{example.plan}<|im_end|>", add_special_tokens=False).input_ids
        return before + plan, len(before)

    def drawn(self, count: int, seed: str) -> list[tuple[list[int], int]]:
        """Return the ids of `count` questions of about one length."""
        rng = random.Random(seed)
        rows = sorted((self.ids(draw(rng)) for _ in range(count * WINDOW)), key=lambda row: len(row[0]))
        first = rng.randrange(len(rows) - count + 1)
        return rows[first : first + count]

    def made(self, rows: list[tuple[list[int], int]]) -> tuple[Tensor, Tensor, Tensor]:
        """Return ids, what is no padding, and which ids are to be foretold: three tables (questions, ids)."""
        longest = max(len(ids) for ids, _ in rows)
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        there, wanted = torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
        for place, (row, before) in enumerate(rows):
            ids[place, : len(row)] = torch.tensor(row)
            there[place, : len(row)] = 1
            wanted[place, before : len(row)] = True
        return ids, there, wanted


def loss_of(model: Any, ids: Tensor, there: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss in nats a token of the plans, and which of those tokens the model would have written itself."""
    hidden = model.model(input_ids=ids, attention_mask=there).last_hidden_state
    logits = model.lm_head(hidden[:, :-1][wanted[:, 1:]]).float()
    right = ids[:, 1:][wanted[:, 1:]]
    return torch.nn.functional.cross_entropy(logits, right), logits.argmax(-1) == right


@torch.no_grad()
def held_out(model: Any, batches: Batches) -> dict[str, float]:
    """Return the loss on questions of functions that are never trained on, and the share of plans that the model would
    write to the last token."""
    rows = [batches.ids(draw(random.Random(f"held/{number}"), held=True)) for number in range(HELD_OUT)]
    rows.sort(key=lambda row: len(row[0]))
    losses, whole = 0.0, 0
    for start in range(0, HELD_OUT, 4):
        ids, there, wanted = batches.made(rows[start : start + 4])
        loss, right = loss_of(model, ids, there, wanted)
        losses += float(loss) * 4 / HELD_OUT
        whole += sum(bool(part.all()) for part in right.split(wanted.sum(1).tolist()))
    return {"held_loss": losses, "held_whole": whole / HELD_OUT}


def train(options: argparse.Namespace) -> None:
    """The loop: questions, one update; a checkpoint after each tenth step."""
    from transformers import AutoModelForCausalLM

    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    base = options.model or Path(folder_of("smollm2"))
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=getattr(torch, options.dtype))
    trained = lora.adapt(model, options.first, options.seed)
    optimizer = torch.optim.AdamW(trained, lr=options.rate, betas=(0.9, 0.98), weight_decay=0.0)
    batches, step, last, tokens = Batches(base), 0, folder / "last.pt", 0
    if last.exists():
        kept = torch.load(last, weights_only=True)
        model.load_state_dict(kept["model"], strict=False)
        optimizer.load_state_dict(kept["optimizer"])
        step, tokens = kept["step"], kept["tokens"]
    begun = time.monotonic()
    with stopping() as stopped, (folder / "curve.jsonl").open("a") as curve:
        while step < options.steps and not stopped.is_set():
            cpu = time.process_time()
            ids, there, wanted = batches.made(batches.drawn(options.batch, f"calls/{options.seed}/{step}"))
            loss, right = loss_of(model, ids, there, wanted)
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
            for group in optimizer.param_groups:
                group["lr"] = options.rate * min(1.0, (step + 1) / 5, 0.05 + (options.steps - step) / options.steps)
            optimizer.step()
            optimizer.zero_grad()
            step, tokens = step + 1, tokens + int(there.sum())
            row = {"step": step, "loss": loss.item(), "right": float(right.float().mean()), "norm": float(norm),
                   "tokens": tokens, "cpu": time.process_time() - cpu}  # fmt: skip
            late = options.minutes is not None and time.monotonic() - begun > 60 * options.minutes
            if step % 10 == 0 or step == options.steps or late or stopped.is_set():
                kept = {"model": {name: weight for name, weight in model.state_dict().items() if "lora_" in name}}
                torch.save(
                    kept | {"optimizer": optimizer.state_dict(), "step": step, "tokens": tokens}, folder / ".last.tmp"
                )
                os.replace(folder / ".last.tmp", last)
                lora.save(model, folder / "adapter", "smollm2")
            if step % 50 == 0 or step == options.steps:
                row |= held_out(model, batches)
            curve.write(json.dumps({key: round(value, 4) for key, value in row.items()}) + "\n")
            curve.flush()
            if late:
                break


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(parse())
