"""Runs of several arms on the same prompts: what each cost, what each said, and what of it counts as evidence."""
