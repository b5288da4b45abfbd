"""What runs on the machine to be modelled: one timer, one store of rows, one engine that takes
cases through both.

    cases --engine.run--> timer.time_case --> row --> store.RowStore (a JSON line) --merge_passes-->
    table

`machine` pins the process to cores, which must happen before JAX is imported; so nothing here
imports JAX by itself.
"""
