"""What a job that adapts while it trains does besides steps; imported only where it adapts."""
