"""The mathematics: problems, inner loops, optimizers, curvatures, estimators, methods. It imports torch alone."""
