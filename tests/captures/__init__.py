"""Pictures for docs of what kmigrate shows; `python -m tests.captures.status` makes those of `status --watch`."""
