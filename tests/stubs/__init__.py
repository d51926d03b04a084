"""Programs that replace the trainer, started by path, and helpers of the tests that start them."""
