"""What runs of a plan print in which ranks choose, links change, or plans do."""
