"""``python -m trainer``, which torchrun starts on every rank."""

from trainer.cli import main
from trainer.failure.process_exit import leave

if __name__ == "__main__":
    main()
    # All records are written and the process group is closed. The interpreter's own shutdown now and then ended in
    # SIGABRT ("terminate called without an active exception": 4 of some 50 launches with tp or cp on busy cores), and
    # torchrun would take the finished run for a failed one.
    leave(0)
