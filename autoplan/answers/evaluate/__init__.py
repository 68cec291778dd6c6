"""The prediction of one layout."""
