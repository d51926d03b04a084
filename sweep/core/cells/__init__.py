"""Cells: models, devices, axes and number formats, and the rules that say which cells can run."""
