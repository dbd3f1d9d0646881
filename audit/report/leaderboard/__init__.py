"""Tables of many scorecards."""
