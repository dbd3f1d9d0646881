"""Regression of attack strength; docs/strength.md."""
