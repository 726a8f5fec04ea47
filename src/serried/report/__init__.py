"""What a run used of what it had, and which line to change."""
