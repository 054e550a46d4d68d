"""What the programs of the pages share: agg_transfer_bench_spmd.py, transfer_bench.py, and so on.

`options` reads command lines, `meeting` brings ranks together, `engines` has an adapter for each
transfer engine, `pairs` moves and checks the bytes of two ranks, `sampling` takes the times,
`output` and `plots` show them. The programs lie one folder above, and so does what they share with
the other benchmarks (measuring).
"""
