"""Model values as rich renderables; nothing here asks or decides."""
