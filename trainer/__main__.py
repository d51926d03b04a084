"""``python -m trainer``: what torchrun starts on every rank."""

from trainer.cli import main
from trainer.failure.process_exit import leave

if __name__ == "__main__":
    main()
    # All is written and the process group is closed. To take the interpreter down as well ended in SIGABRT now and then
    # ("terminate called without an active exception": 4 of some 50 launches with tp or cp on busy cores), and torchrun
    # would call a finished run failed.
    leave(0)
