"""Programs that tests start as processes of their own; none of them is a test."""
