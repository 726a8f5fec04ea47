"""A training run twice, once to its end and once stopped and resumed, and what differs between the two."""
