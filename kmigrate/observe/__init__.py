"""What a process tells of its work: metrics, and their text. Pure: the clock is asked by who measures."""
