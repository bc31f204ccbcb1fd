"""What a plan's time goes into, and what would shorten it: each change is solved again, none is guessed."""
