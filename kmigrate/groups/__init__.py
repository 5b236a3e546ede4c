"""Consumer groups: who is still on the source, and how a group's positions are handed over."""
