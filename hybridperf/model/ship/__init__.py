"""What is shipped, made from the data folder: calibrations of devices (ops) and of systems
(collectives), and the priors behind them.

No row goes into either: a shipped calibration is knobs and weights, with the sources' names,
commits, licenses and row counts, the date and the fit report.
"""
