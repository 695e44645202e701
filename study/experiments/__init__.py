"""Experiments that write results/bench: one file each, run by `python -m study run NAME`."""
