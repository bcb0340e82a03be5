"""Checkpoints: what a job is at one moment, in files that are verified, incremental, and fit any number of servers."""
