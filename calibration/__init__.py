"""What touches a machine or belongs to one machine: microbenchmarks, real training steps, shipped
calibrations.

`hybridperf` never imports this package; its command starts `measure` and `workloads.run` as
programs, which write rows.
"""
