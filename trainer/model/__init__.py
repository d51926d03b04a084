"""The single-device model: decoder, weights, loss, number formats, checkpointing and compilation."""
