"""What a migration's report says, as one value that the screen, the JSON file and the exit code come from."""
