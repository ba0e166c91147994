"""The way to a run from other processes: its events out, orders in, over a socket of its owner."""
