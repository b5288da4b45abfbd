"""Models described by their sizes as workloads: no program is compiled or recorded."""

from hybridperf.workloads.dlrm import DlrmConfig, Placement, dlrm

__all__ = ["DlrmConfig", "Placement", "dlrm"]
