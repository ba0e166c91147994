"""What products in integers (dtype int4) change in the default model's next tokens: KL divergence.

    python benchmarks/rounding_kl.py

Over texts of several kinds, against the same weights in float32; how often the likeliest next token
stays the same; and, for comparison, what bfloat16 changes. Runs: benchmarks/README.md.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from decoder_runs import dense_logits

from flowforge.engine.model_store import resolve_model
from flowforge.engine.models.weights import load_decoder
from flowforge.engine.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.engine.models.decoder import Decoder

TEXT_LEN = 256
ROOT = Path(__file__).resolve().parents[1]
FILES = ("README.md", "docs/start.md", "engine/native/linear.c", "flowforge/errors.py", "LICENSE")


def texts(tokenizer: Tokenizer) -> Iterator[torch.Tensor]:
    """The beginnings of prose, code and legal text."""
    for name in FILES:
        ids = tokenizer.encode((ROOT / name).read_text(encoding="utf-8"))
        for start in (0, TEXT_LEN):
            yield torch.tensor(ids[start : start + TEXT_LEN])


def log_probs(decoder: Decoder, ids: list[torch.Tensor]) -> torch.Tensor:
    """Of the next token behind every token: [tokens, vocabulary]."""
    return torch.cat([dense_logits(decoder, one).float().log_softmax(-1) for one in ids])


def main() -> None:
    directory = resolve_model(None).directory
    ids = list(texts(Tokenizer.from_directory(directory)))
    exact = log_probs(load_decoder(directory, dtype=torch.float32), ids)
    others = {
        "int4": load_decoder(directory, dtype=torch.float32, kernels="rounded"),
        "bfloat16": load_decoder(directory, dtype=torch.bfloat16),
    }
    for name, decoder in others.items():
        found = log_probs(decoder, ids)
        kl = (exact.exp() * (exact - found)).sum(-1)
        same = (exact.argmax(-1) == found.argmax(-1)).float().mean().item()
        print(
            f"{name}: {len(kl)} positions, KL mean {kl.mean().item():.5f} nats, "
            f"p99 {kl.quantile(0.99).item():.4f}, same likeliest token {same:.2%}"
        )


if __name__ == "__main__":
    main()
