"""Differentiate chains of convolution, BatchNorm and ReLU with a linear head by hand, for many tasks at once.

Few-shot learning spends its time on such nets, with different parameters for each task. `algebra` writes out their
loss, gradient and second-order product once, in terms of four operators. `plain` implements the operators in PyTorch
for every device and precision. `launch` and `kernels` implement them in Triton; they are imported only for a GPU.
"""
