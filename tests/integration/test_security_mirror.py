"""The mirror between secure clusters with the least privileges, judged with credentials that are not its own."""
