"""Programs that embed autoplan."""
