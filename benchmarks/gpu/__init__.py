"""The parts of gpu_check; see README.md."""
