"""Branch and bound over the layouts of one choice of degrees, stage by stage."""
