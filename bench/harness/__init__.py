"""What bench/run.py is made of. Standard library only."""
