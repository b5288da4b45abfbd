"""Makes what is shipped from the data folder: priors, and calibrations of devices and systems.

No row goes into them: a shipped calibration is knobs and weights, with the sources' names, commits,
licenses and row counts, the date and the fit report.
"""
