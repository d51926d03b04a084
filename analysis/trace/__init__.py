"""Reduces the profiler's traces to compute, communication, exposed and idle time, per step and rank."""
