"""The compiled engine: sweeps traced once, cut in two, compiled without guards, and compared with autograd."""
