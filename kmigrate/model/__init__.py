"""The domain, pure: records of the state log, the machines of link, topic and group, and the routes they imply."""
