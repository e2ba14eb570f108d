"""The trade of outlining: sums with brackets as steps with needs and difficulties, each done at once or in full."""
