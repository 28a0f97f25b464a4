test_that("rows keep their types, and missing cells are null", {
  rows <- rows_of(data.frame(age = c(31, NA), ward = factor(c("A", "B"))))
  text <- as.character(jsonlite::toJSON(rows, auto_unbox = TRUE, na = "null"))
  expect_equal(text, '[{"age":31,"ward":"A"},{"age":null,"ward":"B"}]')
  expect_error(rows_of(list()), "data frame")
})

test_that("a service needs an address and a token, and does not show it", {
  expect_error(veilwood_service("", "x"), "address")
  expect_error(veilwood_service("http://127.0.0.1:1", ""), "token")
  service <- veilwood_service("http://127.0.0.1:1/", "vw_secret")
  expect_output(print(service), "http://127.0.0.1:1 ")
  expect_false(grepl("secret", paste(capture.output(print(service)), collapse = "")))
})

test_that("keys are new each time", {
  expect_match(new_key(), "^[0-9a-f]{32}$")
  expect_false(new_key() == new_key())
})
