# SPDX-License-Identifier: Apache-2.0

#' Data sets and their remaining budgets
#'
#' @param service From [veilwood_service()].
#' @return A data frame with one row per data set.
#' @export
vw_datasets <- function(service) {
  content <- send_request(service, "GET", "/datasets")
  pick <- function(name) vapply(content, function(one) as.character(one[[name]]), "")
  data.frame(name = pick("name"), people = pick("people"), budget = pick("budget"), left = pick("remaining_for_you"))
}

#' Plan a training
#'
#' Describes the measurements and their loss. Reads no row. A custodian must sign the plan before it runs.
#'
#' @param service From [veilwood_service()].
#' @param dataset The name of a data set.
#' @param estimator The name of an estimator, such as `private-forest` or `random-trees`.
#' @param epsilon,delta The loss of the release.
#' @param ... Parameters of the estimator.
#' @return A plan. Print it to read what will be released.
#' @export
vw_plan <- function(service, dataset, estimator = "private-forest", epsilon = 1, delta = 0, ...) {
  parameters <- list(...)
  if (length(parameters) == 0) parameters <- structure(list(), names = character())
  body <- list(estimator = estimator, epsilon = epsilon, delta = delta, parameters = parameters)
  created <- send_request(service, "POST", paste0("/datasets/", dataset, "/plans"), body)
  as_plan(service, created$id)
}

as_plan <- function(service, id) {
  content <- send_request(service, "GET", paste0("/plans/", id))
  structure(list(service = service, facts = content), class = "veilwood_plan")
}

#' @export
print.veilwood_plan <- function(x, ...) {
  facts <- x$facts
  signed <- if (is.null(facts$signed_by)) "not signed" else paste("signed by", facts$signed_by)
  cat("Plan ", facts$id, " on ", facts$dataset, ", ", signed, "\nhash ", facts$fingerprint, "\n", sep = "")
  if (!is.null(facts$words)) cat(facts$words, "\n")
  invisible(x)
}

#' Sign a plan
#'
#' Signs the hash of a plan that you have read. For custodians.
#'
#' @param service From [veilwood_service()], with a custodian's token.
#' @param plan From [vw_plan()].
#' @return The signed plan.
#' @export
vw_sign <- function(service, plan) {
  body <- list(fingerprint = plan$facts$fingerprint)
  send_request(service, "POST", paste0("/plans/", plan$facts$id, "/signature"), body)
  as_plan(service, plan$facts$id)
}

#' Run a signed plan
#'
#' Waits until the job is done. Lost requests are repeated and never charged twice.
#'
#' @param plan From [vw_plan()], after a custodian has signed it.
#' @param wait Seconds to wait.
#' @return A model, for [predict()], [vw_certificate()] and [vw_answer()].
#' @export
vw_fit <- function(plan, wait = 3600) {
  service <- plan$service
  job <- send_request(service, "POST", paste0("/plans/", plan$facts$id, "/jobs"), key = new_key())
  deadline <- Sys.time() + wait
  while (job$state %in% c("queued", "running")) {
    if (Sys.time() > deadline) stop("job ", job$id, " is still ", job$state, ".", call. = FALSE)
    Sys.sleep(0.2)
    job <- send_request(service, "GET", paste0("/jobs/", job$id))
  }
  if (job$state != "done") stop("job ", job$id, " ", job$state, ": ", job$message, call. = FALSE)
  vw_model(service, job$id)
}

#' Get a model by id
#'
#' @param service From [veilwood_service()].
#' @param id The id of the model.
#' @return A model.
#' @export
vw_model <- function(service, id) {
  content <- send_request(service, "GET", paste0("/models/", id))
  structure(list(service = service, id = id, facts = content), class = "veilwood_model")
}

#' @export
print.veilwood_model <- function(x, ...) {
  cat(x$facts$estimator, " on ", x$facts$dataset, " (", x$id, ")\n", sep = "")
  if (!is.null(x$facts$certificate)) print(vw_certificate(x))
  invisible(x)
}

#' Certificate of a model
#'
#' @param model From [vw_fit()] or [vw_model()].
#' @return The guarantee, the protected unit and the ledger entry.
#' @export
vw_certificate <- function(model) {
  facts <- model$facts$certificate
  if (is.null(facts)) stop("a private predictor has no certificate: each batch of answers has one.", call. = FALSE)
  structure(facts, class = "veilwood_certificate")
}

#' @export
print.veilwood_certificate <- function(x, ...) {
  cat("epsilon ", x$epsilon, ", delta ", x$delta, ", protects ", x$unit, " (", x$adjacency, ")\n", sep = "")
  cat(x$ledger, ", entry ", x$ledger_entry, "; plan ", x$plan_hash, "\n", sep = "")
  invisible(x)
}

rows_of <- function(data) {
  if (!is.data.frame(data) || nrow(data) == 0) stop("data must be a data frame with at least one row.", call. = FALSE)
  texts <- vapply(data, is.factor, NA)
  data[texts] <- lapply(data[texts], as.character)
  lapply(seq_len(nrow(data)), function(i) lapply(data, function(column) column[[i]]))
}

#' Predict new rows
#'
#' Predictions of a trained model are free.
#'
#' @param object From [vw_fit()] or [vw_model()].
#' @param newdata A data frame with the columns of the schema.
#' @param type `response` for classes or numbers, `prob` for a matrix of class probabilities.
#' @param ... Not used.
#' @return A vector, or a matrix with one column per class.
#' @importFrom stats predict
#' @export
predict.veilwood_model <- function(object, newdata, type = c("response", "prob"), ...) {
  type <- match.arg(type)
  path <- paste0("/models/", object$id, "/predict")
  content <- send_request(object$service, "POST", path, list(rows = rows_of(newdata)))
  if (type == "response") return(unlist(content$predictions))
  if (is.null(content$probabilities)) stop("a regression has no probabilities.", call. = FALSE)
  do.call(rbind, lapply(content$probabilities, unlist))
}

#' Private answers
#'
#' `vw_quote` returns the loss of a batch, for free. `vw_answer` charges the batch before anything is computed;
#' repeating the same batch is free.
#'
#' @param model A private predictor.
#' @param questions A data frame of queries, which are public.
#' @param epsilon Epsilon of the batch. Default: the signed one.
#' @return The quote, or the answers with their certificate.
#' @export
vw_quote <- function(model, questions, epsilon = NULL) {
  send_request(model$service, "POST", paste0("/models/", model$id, "/quote"), batch(questions, epsilon))
}

#' @rdname vw_quote
#' @export
vw_answer <- function(model, questions, epsilon = NULL) {
  content <- send_request(model$service, "POST", paste0("/models/", model$id, "/answers"), batch(questions, epsilon))
  list(labels = unlist(content$labels), certificate = structure(content$certificate, class = "veilwood_certificate"))
}

batch <- function(questions, epsilon) {
  body <- list(rows = rows_of(questions))
  if (!is.null(epsilon)) body$epsilon <- epsilon
  body
}
