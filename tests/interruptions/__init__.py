"""A run that is killed, or loses what it stands on, by commands of hours or minutes."""
