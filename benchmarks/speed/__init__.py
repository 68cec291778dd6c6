"""How long the program takes, in multiples of what importing its solver takes."""
