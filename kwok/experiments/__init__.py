"""Experiments: what others do with the same fleet beside what wholenode does; results go to build/experiments/."""
