"""What an operator sees of a program that runs: metrics, traces, health, and what an autoscaler asks for."""
