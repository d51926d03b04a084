"""The checks of ``doctor``: how they run, the probe's job, and what its nodes report."""
