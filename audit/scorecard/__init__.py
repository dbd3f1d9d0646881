"""The result of an audit as plain data, and the flags on it."""
