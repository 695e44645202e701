"""Compiles a whole step: traced through all of its derivatives, rid of what it does twice or for nothing, fused.

`compiling` makes the trace and hands it to inductor. In between, `simplifying` rids it of repetitions, with `merging`
for sums of convolutions and `joining` for vectors of many pieces. `side_by_side` and `unpooling` write operators in a
form of which inductor makes fewer kernels.
"""
