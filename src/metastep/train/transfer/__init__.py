"""Meta-transfer learning: what and where a source network should teach a target network (L2T-ww)."""
