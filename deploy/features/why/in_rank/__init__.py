"""What runs in a rank."""
