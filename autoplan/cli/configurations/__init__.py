"""Commands about launch configurations: one writes them, one reads them."""
