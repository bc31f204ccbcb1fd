"""PyTorch's schedule CSVs: plans out to them, and what is wrong with anyone's."""
