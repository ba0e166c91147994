"""What rounding changes in the default model's next tokens: KL divergence.

    python benchmarks/rounding_kl.py

Products in integers (dtype int4), all matrices in float8 (dtype float8, on GPUs), KV rows in float8
(kv_dtype), and for comparison bfloat16. Over texts of several kinds, against the same weights in
float32; and how often the likeliest next token stays the same. Runs: benchmarks/README.md.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from decoder_runs import dense_logits

from flowforge.engine.attention.backends import choose_backend
from flowforge.engine.attention.reads import Span
from flowforge.engine.kv.store import KvStore
from flowforge.engine.model_store import resolve_model
from flowforge.engine.models.weights import load_decoder
from flowforge.engine.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flowforge.engine.models.decoder import Decoder

    Logits = Callable[[Decoder, torch.Tensor], torch.Tensor]

TEXT_LEN = 256
ROOT = Path(__file__).resolve().parents[1]
FILES = ("README.md", "docs/start.md", "engine/native/linear.c", "flowforge/errors.py", "LICENSE")


def texts(tokenizer: Tokenizer) -> Iterator[torch.Tensor]:
    """The beginnings of prose, code and legal text."""
    for name in FILES:
        ids = tokenizer.encode((ROOT / name).read_text(encoding="utf-8"))
        for start in (0, TEXT_LEN):
            yield torch.tensor(ids[start : start + TEXT_LEN])


def log_probs(decoder: Decoder, ids: list[torch.Tensor], logits: Logits) -> torch.Tensor:
    """Of the next token behind every token: [tokens, vocabulary]."""
    return torch.cat([logits(decoder, one).float().log_softmax(-1) for one in ids])


@torch.inference_mode()
def float8_kv_logits(decoder: Decoder, ids: torch.Tensor) -> torch.Tensor:
    """Of a text whose rows are read as float8, its own pass's too."""
    config, positions = decoder.config, torch.arange(len(ids))
    store = KvStore(
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        num_pages=len(ids),
        page_size=1,
        dtype=decoder.dtype,
        device=decoder.device,
        is_float8=True,
    )
    spans = (Span(0, len(ids), ((0, len(ids)),)),)
    attention = choose_backend(store).step(positions, spans, ())
    return decoder.logits(decoder.forward(ids, positions, attention))


def main() -> None:
    directory = resolve_model(None).directory
    ids = list(texts(Tokenizer.from_directory(directory)))
    plain = load_decoder(directory, dtype=torch.float32)
    exact = log_probs(plain, ids, dense_logits)
    others: dict[str, tuple[Decoder, Logits]] = {
        "float8 KV": (plain, float8_kv_logits),
        "int4": (load_decoder(directory, dtype=torch.float32, kernels="rounded"), dense_logits),
        "float8": (load_decoder(directory, dtype=torch.float32, kernels="float8"), dense_logits),
        "bfloat16": (load_decoder(directory, dtype=torch.bfloat16), dense_logits),
    }
    for name, (decoder, logits) in others.items():
        found = log_probs(decoder, ids, logits)
        kl = (exact.exp() * (exact - found)).sum(-1)
        same = (exact.argmax(-1) == found.argmax(-1)).float().mean().item()
        print(
            f"{name}: {len(kl)} positions, KL mean {kl.mean().item():.5f} nats, "
            f"p99 {kl.quantile(0.99).item():.4f}, same likeliest token {same:.2%}"
        )


if __name__ == "__main__":
    main()
