"""Networks, their closed forms, and how they are optimised."""
