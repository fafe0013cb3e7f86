"""Faults in real federations on this machine: schedules of them, what they may not break, and exact resumption."""
