"""Grids of jobs: what a grid file may say, and everything that is wrong with one."""
