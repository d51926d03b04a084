"""Failure: error files, exits and the flight recorder."""
