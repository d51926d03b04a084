"""Every private name of torch and torchao that the trainer imports, calls or patches; no other room names one."""
