"""What is fuzzed, and what each input is held to."""
