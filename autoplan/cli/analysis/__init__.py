"""Commands that explain one product, compare layouts, guide a choice and read a trace."""
