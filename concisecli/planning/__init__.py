"""What a pipeline will take, before it runs: settings and their sources, work, memory, time, money. Loads no torch."""
