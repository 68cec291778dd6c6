"""Why a layout is or is not on the front, and what makes it fit."""
