"""What messages and transfers on GPUs cost."""
