"""What a run's profile says beside the prediction."""
