"""What a run shows and writes: lines on the terminal, metrics.jsonl, logs, profiles, TensorBoard's files."""
