"""The tables and figures in docs, generated from results."""
