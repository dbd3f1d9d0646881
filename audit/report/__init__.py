"""Scorecards for people: terminal, Markdown, HTML."""
