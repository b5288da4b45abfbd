"""Which rank holds which embedding table: tables -> cost of a placement -> candidates -> the best
one, and why.

tables     read, checked, split by rows or columns where asked
cost       a placement's seconds and bytes as sums over each rank's tables: one formula for NumPy
           and for JAX
greedy     the candidates of Lin et al.
relaxed    gradient through a softmax over ranks
local      moves and swaps from any placement
exact      branch and bound where tables are few, dynamic programming over tables in a row
"""
