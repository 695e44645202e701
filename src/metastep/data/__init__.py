"""Data sets: pictures by class with episodes, and labelled pictures with batches."""
