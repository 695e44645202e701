"""A page to draw on: a learner adapts to a few drawings of each class, and names new ones."""
