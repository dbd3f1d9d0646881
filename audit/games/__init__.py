"""Who knows what, and how a guess is scored: one game, one file."""
