"""Configuration: files, environment and flags become one frozen value at the door."""
