"""Studies that vLLM runs in this process, without inspect-ai: plans, jobs, answers, the choice of settings and the report."""
