"""What people call from Python: `audit.run`, `audit.scenario`, `audit.compare`."""
