"""What viewers know of runs: folded from events, without a screen, a loop or a clock."""
