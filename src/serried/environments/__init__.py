"""Which Python and which libraries the ranks have: chosen, made active, built, tried."""
