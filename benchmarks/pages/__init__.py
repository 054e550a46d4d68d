"""Common parts of the pages' programs: agg_transfer_bench_spmd.py, transfer_bench.py, and so on.

`options` reads command lines, `meeting` brings ranks together, `engines` has an adapter for each
transfer engine, `pairs` moves and checks the bytes of two ranks, `sampling` takes the times,
`output` and `plots` show results. The programs lie one folder above, as do parts common to all
benchmarks (measuring).
"""
