"""Why a layout is or is not the answer, and what would make it fit."""
