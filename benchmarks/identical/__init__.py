"""Whether two states of the program answer a fixed list of questions byte for byte alike."""
