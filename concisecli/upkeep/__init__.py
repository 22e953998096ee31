"""Looking at runs and machines, and tidying up. Reads files only; loads no torch."""
