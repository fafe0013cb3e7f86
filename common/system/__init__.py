"""Processes, files, locks and what the machine has; nothing of learning."""
