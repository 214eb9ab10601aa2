"""What a worker process imports."""
