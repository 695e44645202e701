"""Plain modules; no meta-learning inside."""
