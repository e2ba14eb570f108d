"""Low-rank adapters in plain torch (Hu et al., arXiv 2106.09685), kept in the form of `peft`, which vLLM reads.

A matrix W becomes W + alpha/r · B·A. Only A and B are trained.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

__all__ = ["ALPHA", "MATRICES", "RANK", "LoraLinear", "adapt", "load", "save", "weights"]

RANK, ALPHA = 8, 16
MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class LoraLinear(nn.Module):
    """A linear map (inputs to outputs) and its correction, which is nothing at the start."""

    def __init__(self, base: nn.Linear, rank: int = RANK, alpha: float = ALPHA) -> None:
        super().__init__()
        self.base, self.scale = base, alpha / rank
        wide = base.in_features
        self.lora_A = nn.Parameter(torch.randn(rank, wide, dtype=torch.float32) / wide**0.5)
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        """Return W·x + alpha/r · B·A·x."""
        low = x @ self.lora_A.to(x.dtype).T
        return self.base(x) + low @ (self.scale * self.lora_B).to(x.dtype).T


def adapt(model: Any, first: int, seed: int = 0) -> list[nn.Parameter]:
    """Put adapters into a Llama's layers from number `first`. Return the trained parameters; the rest is frozen."""
    torch.manual_seed(seed)
    model.requires_grad_(False)
    for layer in model.model.layers[first:]:
        for part in (layer.self_attn, layer.mlp):
            for name in MATRICES:
                if isinstance(base := getattr(part, name, None), nn.Linear):
                    setattr(part, name, LoraLinear(base))
    return [weight for weight in model.parameters() if weight.requires_grad]


def weights(model: Any) -> dict[str, Tensor]:
    """Return the adapters' weights under the names that `peft` gives them."""
    return {
        f"base_model.model.{name}.{part}.weight": getattr(module, part).detach()
        for name, module in model.named_modules()
        if isinstance(module, LoraLinear)
        for part in ("lora_A", "lora_B")
    }


def save(model: Any, folder: Path, base: str) -> None:
    """Write the adapters as `peft` does, in bfloat16. `base`: name of the model that they belong to."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = {name: weight.to(torch.bfloat16).contiguous() for name, weight in weights(model).items()}
    save_file(kept, str(folder / "adapter_model.safetensors"), metadata={"format": "pt"})
    layers = sorted({int(name.split(".layers.")[1].split(".")[0]) for name in kept})
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "r": RANK, "lora_alpha": ALPHA,
        "lora_dropout": 0.0, "bias": "none", "target_modules": list(MATRICES), "layers_to_transform": layers,
        "layers_pattern": "layers", "inference_mode": True,
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n")


def load(model: Any, folder: Path) -> None:
    """Read weights that `save` has written into a model that has been adapted alike."""
    kept = load_file(str(folder / "adapter_model.safetensors"))
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, LoraLinear):
                for part in ("lora_A", "lora_B"):
                    getattr(module, part).copy_(kept[f"base_model.model.{name}.{part}.weight"])
