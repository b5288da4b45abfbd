"""Our own files and the tables people bring: the only room that reads or writes either."""

from hybridperf.io.arrays import hash_of, read_arrays, write_arrays
from hybridperf.io.errors import InputError, closest, unknown
from hybridperf.io.files import check_folder_writable, read_json, replacing, write_json
from hybridperf.io.installed import installed_hardware
from hybridperf.io.tables import (
    positive_column,
    read_table,
    read_tables,
    require_columns,
    write_table,
)

__all__ = [
    "InputError", "check_folder_writable", "closest", "hash_of", "installed_hardware",
    "positive_column", "read_arrays", "read_json", "read_table", "read_tables", "replacing",
    "require_columns", "unknown", "write_arrays", "write_json", "write_table",
]  # fmt: skip
