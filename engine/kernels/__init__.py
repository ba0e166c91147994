"""Kernels in Triton, for GPUs: one file a family, each held to plain torch in `reference.py`."""
