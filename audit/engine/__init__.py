"""Many runs of one defense, stored tile by tile."""
