"""`metastep reproduce`: every claim of the paper as data, the runs that it needs, and one file of results for each."""
