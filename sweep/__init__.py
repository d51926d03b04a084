"""Plan, submit and watch the runs of a scaling sweep; imports nothing, so that submodules start fast."""
