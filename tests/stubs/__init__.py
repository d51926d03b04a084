"""Stand-ins for the trainer, started by path, and what the tests that start them share."""
