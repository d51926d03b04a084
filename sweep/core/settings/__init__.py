"""Settings of one command: the policy, the cluster, and what the cluster allows."""
