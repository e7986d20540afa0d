"""Kueue next to us: its Workloads under our admission check, and victims that are stopped through it."""
