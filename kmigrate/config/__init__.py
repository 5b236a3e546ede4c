"""The configuration: files, environment and flags become one frozen value when a process starts."""
