"""Compile a whole step: trace it through all of its derivatives, remove redundant operators, and fuse the rest.

`compiling` makes the trace and passes it to inductor. In between, `simplifying` removes repeated operators. `merging`
merges sums of convolutions, and `joining` concatenates vectors of many pieces. `side_by_side` and `unpooling` write
operators in a form that needs fewer kernels.
"""
