"""The names of Paddle 2.x that scripts for parameter servers use, as layers of programs; imperative mode is left out."""
