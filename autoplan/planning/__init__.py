"""Plans of jobs: the front, a layout's prediction, and what makes an infeasible job feasible."""
