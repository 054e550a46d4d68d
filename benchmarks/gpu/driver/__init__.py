"""What the CUDA driver does: programs that need nothing of ours."""
