"""Grids: axes and conditions, expanded into cells and rejections, and the series that view them."""
