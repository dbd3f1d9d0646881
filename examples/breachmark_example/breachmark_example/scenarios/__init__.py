"""Scenarios: every YAML file of this folder."""
