"""Pure cost and memory model that predicts step time and peak memory of a cell before it runs."""
