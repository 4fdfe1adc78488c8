"""Modules of the benchmarks. Standard library only."""
