"""Costs without a GPU: architectures by name or from a Hugging Face config.json, devices, and what each layer costs on them."""
