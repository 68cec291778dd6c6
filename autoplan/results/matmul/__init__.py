"""Results of ``gemm``: one product on one device, and on several."""
