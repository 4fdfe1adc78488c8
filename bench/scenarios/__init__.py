"""One file per scenario. Its docstring describes the scenario, and `run(campaign)` runs it."""
