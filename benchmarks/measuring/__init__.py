"""Common parts of the benchmarks: jobs, payloads, reports, and the libraries beside ours."""
