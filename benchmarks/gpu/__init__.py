"""What gpu_check consists of; see README.md."""
