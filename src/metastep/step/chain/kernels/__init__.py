"""The operators of a chain as Triton kernels: convolutions read z and normalise it on the way, and sum up what follows.

BatchNorm and ReLU are never passes of their own. A kernel that writes z (or dn) also writes its sums over the rows it
saw; its readers join the sums in a fixed order, so that results do not depend on which came first, and make of them the
few numbers for each channel with which they find what they need linearly:

    n = A·z + B          ṅ = A·ż + A˙·z + B˙
    dz = G·dn + U·z + V          dż = G·dṅ + U·ż + G˙·dn + U˙·z + V˙

Max-pooling is a pass that keeps z and ż of the largest n of each window, and which that was. What follows reads them as
it would read z; on the way back, dn is as small, and belongs to the one place of its window.

The names follow `algebra`; rows are positions of all pictures of a task.
"""
