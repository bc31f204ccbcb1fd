"""What a planned step waits for: each op's awaited event, the critical path, idle time by cause, slack, tolerated delay."""
