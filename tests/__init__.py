"""Tests of the sweep, trainer and analysis packages; the folders mirror the packages."""
