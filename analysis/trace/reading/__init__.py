"""Reads a trace and keeps what the numbers need; names of kernels; arithmetic of intervals."""
