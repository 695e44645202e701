"""Few-shot learning: train, evaluate and use learners."""
