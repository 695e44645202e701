"""Time and memory of whole meta-iterations, beside what else one could write or install."""
