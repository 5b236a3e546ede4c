"""The only package that touches sockets, the clock and tasks."""
