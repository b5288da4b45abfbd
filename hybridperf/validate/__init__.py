"""Predictions of what a calibration has not seen, beside what this machine then takes; the demo."""
