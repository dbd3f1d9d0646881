"""Pictures of one scorecard."""
