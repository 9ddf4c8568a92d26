"""Whole installs, rollouts and accidents on a scripted cluster. Each scenario has a twin that reads lists shuffled."""
