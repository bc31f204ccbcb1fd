"""File formats, ours and those of other tools: plan, profile, topology, trace; what torch and Megatron read and write."""
