"""The commands other than `run`."""
