"""What the benchmarks have in common: jobs, payloads, reports, and the libraries beside ours."""
