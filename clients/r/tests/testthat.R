library(testthat)
library(veilwood)
test_check("veilwood")
