"""The trade of planning tools: questions over tables as plans, as turns of one call, as native calls; and splitting."""
