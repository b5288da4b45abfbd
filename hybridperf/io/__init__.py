"""Our own files and the tables people bring: the only room that reads or writes either."""

from hybridperf.io.arrays import hash_of, read_arrays, write_arrays
from hybridperf.io.documents import (
    parse_json,
    parse_toml,
    read_json,
    read_json_lines,
    read_text,
    read_toml,
    shipped_toml,
    write_json,
)
from hybridperf.io.errors import InputError, OldFile, closest, first_line, undamaged, unknown
from hybridperf.io.files import check_folder_writable, is_stream, replacing, replacing_in, settled
from hybridperf.io.installed import installed_hardware
from hybridperf.io.plain import plain
from hybridperf.io.tables import (
    ABOVE_ZERO,
    ANY_NUMBER,
    Numbers,
    check_seconds,
    number_columns,
    positive_column,
    read_table,
    read_tables,
    real_numbers,
    require_columns,
    write_table,
)

__all__ = [
    "ABOVE_ZERO", "ANY_NUMBER", "InputError", "Numbers", "OldFile", "check_folder_writable",
    "check_seconds", "closest", "first_line", "hash_of",
    "installed_hardware", "is_stream", "number_columns", "parse_json", "parse_toml", "plain",
    "positive_column", "read_arrays", "read_json", "read_json_lines", "read_table",
    "read_tables", "read_text", "read_toml", "real_numbers", "replacing", "replacing_in",
    "require_columns", "settled", "shipped_toml", "undamaged", "unknown", "write_arrays",
    "write_json", "write_table",
]  # fmt: skip
