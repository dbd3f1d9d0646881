"""Attacks: one file each, `(task, *, settings) -> Attack`; the file names it."""
