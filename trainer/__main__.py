"""``python -m trainer``: what torchrun starts on every rank."""

from trainer.cli import main

if __name__ == "__main__":
    main()
