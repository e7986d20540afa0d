"""`make bench`: what wholenode costs and how long whole-node jobs wait, in figures; no test asserts a time."""
