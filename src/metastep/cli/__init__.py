"""The command `metastep`: one file for each group of commands."""
