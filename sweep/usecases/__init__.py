"""What the tool does, over the ports: open a run, submit, reconcile, watch, cancel, report."""
