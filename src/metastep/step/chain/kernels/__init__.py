"""Implement the operators of a chain as Triton kernels. A convolution normalises z while reading it.

BatchNorm and ReLU have no passes of their own. A kernel that writes z (or dn) also writes its sums over its rows. The
readers join these sums in a fixed order, so that results do not depend on timing. From the sums they compute a few
numbers for each channel, and with these they get what they need linearly:

    n = A·z + B          ṅ = A·ż + A˙·z + B˙
    dz = G·dn + U·z + V          dż = G·dṅ + U·ż + G˙·dn + U˙·z + V˙

Max-pooling is a pass that keeps z and ż of the largest n of each window, and its place. The next block reads them as it
reads z. In the backward, dn has the pooled size and belongs to that one place of its window.

The names are those of `algebra`. Rows are the positions of all pictures of a task.
"""
