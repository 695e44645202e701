"""Chains of convolution, BatchNorm and ReLU with a linear head: derivatives by hand, for many tasks at once.

Few-shot learning spends its time on such nets, with other parameters for each task. Their loss, gradient and
second-order product are written out once (`algebra`), on four operators that exist in PyTorch (`plain`, for every
device and precision) and as Triton kernels (`launch` and `kernels`, for a GPU; imported only where one is used).
"""
