"""Tensor parallel: one model over several processes, each with its part of every layer.

Column and row splits as in Megatron-LM (Shoeybi et al., 2019): two sums over all ranks a layer.
"""
