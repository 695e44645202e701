"""How a meta-step runs: paths and kernels, captured and compiled steps, ranks. It imports torch alone."""
