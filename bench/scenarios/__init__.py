"""One file a scenario: its docstring says what it shows, `run(campaign)` does it."""
