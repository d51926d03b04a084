"""The use cases, over the ports: open a run, submit, settle, watch, cancel, report."""
