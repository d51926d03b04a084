"""The scheduler port over processes of this machine."""
