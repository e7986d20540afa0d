"""`wholenode why` on one real control plane, which the files of this folder share."""
