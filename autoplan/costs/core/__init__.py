"""What every formula starts from: candidates, layer types, parameters, sizes, and the prediction."""
