"""Networks, what is known of them in closed form, and how they are optimised."""
