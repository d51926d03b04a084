"""Files: the run directory, the ledger, the lease and the other records on disk."""
