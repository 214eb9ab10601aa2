"""Faults that other systems had, tried on this one."""
