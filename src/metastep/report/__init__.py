"""One HTML page about one run or several: it needs no other file, no script and no network."""
