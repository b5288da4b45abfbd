"""Predict how long ML training takes on a machine before anyone runs it there. `import hybridperf as hp`; README shows three uses."""

__version__ = "0.1.0"
