"""The command line: verbs, what they print, and the wiring of the adapters."""
