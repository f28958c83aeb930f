"""What a run shows and writes: lines on the terminal, metrics.jsonl, profiles, TensorBoard's files."""
