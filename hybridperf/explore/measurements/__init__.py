"""Which shapes to measure on a machine, of ops in general or for one workload."""
