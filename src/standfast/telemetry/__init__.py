"""What an operator sees of a program that runs: metrics, health, and what an autoscaler asks for."""
