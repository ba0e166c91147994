"""Routes: which model a step's request goes to, and what happens when that one fails."""
