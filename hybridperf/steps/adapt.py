"""Knobs and layer times from measured steps: one Gaussian conditioning, repeated where the composition bends.

The log of a step's time is a known function of logs of knobs theta and of a correction d(x) of the time of a layer:

    log measured_i = log step_i(theta, d(x_i)) + noise_i,    theta ~ N(theta_0, widths^2),    d ~ GP(0, s^2 Matern32(x, x'))

x says which cell a layer is of: (log2 hidden, log2 tp, log2 micro-batch). Linearised at (theta, d), with J the slopes over the knobs and e
those over the correction, both at once are conditioned on the rows:

    K = J widths^2 J^T + (e e^T) k(x, x) + noise,   a = K^-1 (log measured - log step + J (theta - theta_0) + e d),
    theta = theta_0 + widths^2 J^T a,               d(x) = k(x, x_rows) (e a)

Rows of one cell share its correction, so a hundred of them do not drown the priors; a knob that no row speaks of stays at its prior; what a
knob explains everywhere is dearer as a correction. The noise is Student's t (4 degrees of freedom, by reweighting): a handful of disturbed
rows bends nothing. The same K gives how sure a new row's prediction is, and how likely the rows are under one assumption or another.

Axes: n rows learned from, N rows asked for, K knobs, d = 3 inputs. All in NumPy, float64: a fit takes a second.
"""

from __future__ import annotations
