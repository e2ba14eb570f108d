"""The trades of search and of votes: scores of partial states, single steps, and sums that are often wrong."""
