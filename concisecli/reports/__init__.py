"""From completions to scores, and from scores to a page. `scores` and `reporting` are the ways in."""
