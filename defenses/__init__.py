"""Defenses: one file each, `(task, *, settings) -> Defense`; the file names it."""
