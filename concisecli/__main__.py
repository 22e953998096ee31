"""`python -m concisecli` is `concise`."""

from concisecli.cli import main

if __name__ == "__main__":
    main()
