"""What a process tells of its work to those who run it: measures."""
