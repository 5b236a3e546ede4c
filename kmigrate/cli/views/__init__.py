"""Model values as rich renderables; nothing here contacts a cluster or decides."""
