"""Reports of migrations and checks; a migration's screen, JSON file and exit code come from one value."""
