# Needs a service with the data set "cars", a token of an analyst and one of a custodian.
test_that("a statistician plans, fits, predicts and reads the certificate", {
  skip_if(Sys.getenv("VEILWOOD_SERVICE") == "", "no service is running")
  analyst <- veilwood_service()
  custodian <- veilwood_service(token = Sys.getenv("VEILWOOD_CUSTODIAN_TOKEN"))
  expect_equal(vw_datasets(analyst)$name, "cars")

  plan <- vw_plan(analyst, "cars", "random-trees", epsilon = 0.5, n_estimators = 3)
  expect_output(print(plan), "not signed")
  expect_error(vw_fit(plan), "not signed", class = "veilwood_refused")
  expect_output(print(vw_sign(custodian, plan)), "signed by custodian")
  model <- vw_fit(plan)
  expect_equal(vw_certificate(model)$epsilon, 0.5)
  expect_equal(vw_certificate(model)$plan_hash, plan$facts$fingerprint)

  cars <- data.frame(buying = "low", maint = "low", doors = c("2", "4"), persons = "4", lug_boot = "big", safety = "high")
  expect_length(predict(model, cars), 2)
  chances <- predict(model, cars, type = "prob")
  expect_equal(dim(chances), c(2, 4))
  expect_equal(rowSums(chances), c(1, 1), tolerance = 1e-4)
  expect_error(predict(model, data.frame(colour = "red")), class = "veilwood_refused")

  asked <- vw_plan(analyst, "cars", "MatrixForestPredictor", epsilon = 0.5, n_estimators = 2, max_depth = 1)
  vw_sign(custodian, asked)
  predictor <- vw_fit(asked)
  expect_equal(vw_quote(predictor, cars)$epsilon, "1/2")
  first <- vw_answer(predictor, cars)
  expect_equal(vw_answer(predictor, cars), first)
  expect_error(vw_answer(predictor, cars[1, ], epsilon = 100), class = "veilwood_refused") # more than was signed

  dear <- vw_plan(analyst, "cars", "MatrixForestPredictor", epsilon = 100, n_estimators = 2, max_depth = 1)
  vw_sign(custodian, dear)
  refused <- expect_error(vw_answer(vw_fit(dear), cars), class = "veilwood_budget")
  expect_equal(refused$remaining, "epsilon=2")
})
