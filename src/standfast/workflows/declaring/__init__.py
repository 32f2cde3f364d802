"""What users declare: workflows, steps and limits."""
