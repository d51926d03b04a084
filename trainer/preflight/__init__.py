"""Preflight: one fake rank of a cell, its memory and its traffic."""
