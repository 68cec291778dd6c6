"""Independent enumeration of choices of degrees, and their numbers of layouts."""
