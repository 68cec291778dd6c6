"""Planning the cells of a grid, in parallel and safe against a kill."""
