"""Embedding tables: who looks up what, how many different rows that is, and what a cache still
holds of them.

    table = Table("clicks", rows=1e6, dim=64, pooling=20, access=Zipf(0.9, 150))
    table.unique_rows(batch=4096), table.histogram(4096), table.hits(4096, cache_bytes=40e6)

What a lookup costs is an op: `ops.embedding_bag.lookup_calls(tables, batch, "forward")`.
"""

from hybridperf.ops.embedding.access import Access, Histogram, Indices, Uniform, Zipf, thin
from hybridperf.ops.embedding.distance import LookupStream, distances, met, uniform_unique_rows
from hybridperf.ops.embedding.reuse import BINS, bin_names, lookups_within
from hybridperf.ops.embedding.table import STATE_BYTES, Table, check_names, row_pieces, table_bytes

__all__ = [
    "BINS", "STATE_BYTES", "Access", "Histogram", "Indices", "LookupStream", "Table", "Uniform",
    "Zipf", "bin_names", "check_names", "distances", "lookups_within", "met", "row_pieces",
    "table_bytes", "thin", "uniform_unique_rows",
]  # fmt: skip
