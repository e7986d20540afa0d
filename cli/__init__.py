"""The `wholenode` command line."""
