"""The state log: the one place where the engines meet."""
