"""Golden values: numbers that no change of the code may change. They are in expected.json."""
