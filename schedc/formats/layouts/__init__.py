"""Layouts of plans as options of Megatron-LM and torchtitan."""
