"""What holds the product against something else: brute force, models and engines of their own, PyTorch's orders, relations."""
