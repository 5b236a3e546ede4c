"""The state log, the only place where the engines meet."""
