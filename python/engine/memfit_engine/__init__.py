"""The program of memfit with the CPU engine's threads. The package `memfit` finds it here; there is nothing to call."""
