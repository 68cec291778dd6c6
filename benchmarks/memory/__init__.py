"""Predicted memory against bytes counted on real PyTorch modules, part by part."""
