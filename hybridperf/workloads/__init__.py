"""Models described by their sizes as workloads: no program is compiled or recorded."""
