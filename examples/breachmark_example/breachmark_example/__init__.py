"""Plug-ins of Breachmark in a package of their own."""
