"""From words on a command line to a checked scenario."""
