"""Plan, submit and watch the runs of a scaling sweep; imports nothing, so that every submodule starts fast."""
