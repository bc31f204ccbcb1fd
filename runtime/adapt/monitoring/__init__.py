"""What a rank can tell of links and its own speed while it trains: stamps, clocks, and tests that tell changes from noise."""
