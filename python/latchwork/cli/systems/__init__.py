"""Commands of the systems other than the job cluster, one module each."""
