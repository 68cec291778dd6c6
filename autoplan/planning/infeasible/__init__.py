"""Why a job has no plan, and the smallest changes that give it one."""
