"""Time and memory of whole meta-iterations, and of what else one could write or install."""
