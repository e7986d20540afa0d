"""Every decision of wholenode as a pure function: no I/O, no clock."""
