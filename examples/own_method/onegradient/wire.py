FIRST_GRADIENT = "first-gradient"  # the procedure
GRADIENT_NORM = "gradient-norm"  # a metric
