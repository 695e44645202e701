"""Chains of convolution, BatchNorm and ReLU with a linear head: derivatives by hand, for many tasks at once.

What few-shot learning spends its time on is such a net with other parameters for each task. Here its loss, gradient
and second-order product are written out once (`algebra`), on four operators that exist in PyTorch (`plain`, for every
device and precision) and as Triton kernels (`launch` and `kernels`, for a GPU; imported only where one is used).
"""

from metastep.fused import plain
from metastep.fused.chain import Chain, NotAChainError, chain_of
from metastep.fused.problem import FusedJudge, dot_of_each, fused_over_tasks, fused_problem

__all__ = [
    "Chain",
    "FusedJudge",
    "NotAChainError",
    "chain_of",
    "dot_of_each",
    "fused_over_tasks",
    "fused_problem",
    "plain",
]
