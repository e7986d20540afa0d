"""The doctor: what is wrong with a cluster's settings, told from what a reader of it can see. Nothing is changed."""
