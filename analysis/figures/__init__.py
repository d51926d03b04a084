"""The figure of a table: scaling curves with their ideal line, or bars for configurations that are compared."""
