"""Training runs: configuration, folder, checkpoints, metrics, and the two jobs (few-shot and transfer)."""
