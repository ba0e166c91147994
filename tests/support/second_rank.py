"""The second of two ranks, as a process: it computes what the first computes, model by model.

python second_rank.py MEETING_FILE CHUNK_LEN NUM_IDS DIRECTORY...
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from decoder_runs import paged_logits

from flowforge.engine.models.config import read_model_config
from flowforge.engine.parallel.group import RankGroup
from flowforge.engine.parallel.loading import PartLoading
from flowforge.engine.parallel.split import Rank


def rank_logits(
    rank: Rank, meeting_file: Path, directories: list[Path], chunk_len: int, num_ids: int
) -> list[torch.Tensor]:
    """What a rank of two says of each model, in chunks through pages."""
    group = RankGroup(rank, meeting_file, torch.device("cpu"))
    found: list[torch.Tensor] = []
    for directory in directories:
        loading = PartLoading(directory, read_model_config(directory), rank)
        decoder = loading.decoder(loading.load(torch.float32, "cpu", "never"), group)
        found.append(paged_logits(decoder, torch.arange(3, 3 + num_ids), chunk_len))
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    meeting, chunk, ids, *names = sys.argv[1:]
    rank_logits(Rank(1, 2), Path(meeting), [Path(one) for one in names], int(chunk), int(ids))
