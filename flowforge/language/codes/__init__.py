"""Every code that a user may meet, explained: a file of text for each family."""
