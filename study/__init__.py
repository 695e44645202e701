"""The study: benchmarks, the claims of the paper, experiments, and the tables in docs. It is not part of the wheel."""
