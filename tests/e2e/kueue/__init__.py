"""Situations with the real Kueue beside us: its process, its webhooks, its kinds."""
