"""`python -m study claims`: the claims of the paper, the runs that each needs, and one file of results for each."""
