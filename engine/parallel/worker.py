"""A process that is one rank of a split model: it computes what the first rank computes.

It ends when the first rank lets go of its socket, however that process ends.
"""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import torch

from flowforge.engine.parallel.messages import (
    PartLoaded,
    PartTask,
    PutRows,
    TakeRows,
    WorkerFailed,
)
from flowforge.engine.parallel.rank_forward import RankPart
from flowforge.errors import FlowForgeError

if TYPE_CHECKING:
    from flowforge.engine.forward import StepForward
    from flowforge.engine.step_batch import StepBatch


def main(descriptor: int) -> None:
    """Serve the first rank over an inherited socket; returns when it is gone or this one failed."""
    connection: Connection = Connection(descriptor)
    try:
        _serve(connection)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except FlowForgeError as error:
        _tell(connection, WorkerFailed(error.code, error.message, error.help))
    except Exception as error:
        _tell(connection, WorkerFailed(None, f"{type(error).__name__}: {error}", None))
        raise


def compute(forward: StepForward, batch: StepBatch) -> None:
    """What every rank does of a batch, in the order in which all of them do it."""
    forward.move(batch)
    if batch.token_ids:
        hidden = forward.hidden(batch)
        for rows in batch.logit_rows:
            forward.logits(hidden, rows)


@torch.inference_mode()
def _serve(connection: Connection) -> None:
    task = connection.recv()
    assert isinstance(task, PartTask), "the first message says what to load"
    part = RankPart(task)
    connection.send(PartLoaded())
    connection.recv()
    met = part.meet()
    while True:
        match connection.recv():
            case TakeRows(slots):
                met.rows.gather(slots)
            case PutRows() as message:
                met.rows.put_in(message)
            case batch:
                compute(met.forward, batch)


def _tell(connection: Connection, failure: WorkerFailed) -> None:
    try:
        connection.send(failure)
    except OSError:
        # The first rank is gone: nobody is left to be told.
        sys.exit(1)
