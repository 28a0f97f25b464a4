# SPDX-License-Identifier: Apache-2.0

#' Data sets and what is left of each
#'
#' @param service From [veilwood_service()].
#' @return A data frame with a row for each data set.
#' @export
vw_datasets <- function(service) {
  found <- ask(service, "GET", "/datasets")
  pick <- function(name) vapply(found, function(one) as.character(one[[name]]), "")
  data.frame(name = pick("name"), people = pick("people"), budget = pick("budget"), left = pick("remaining_for_you"))
}

#' Plan a training
#'
#' Says what will be measured and what it costs, before a row is read. A custodian signs the plan before it runs.
#'
#' @param service From [veilwood_service()].
#' @param dataset The name of a data set.
#' @param estimator The name of an estimator, such as `private-forest` or `random-trees`.
#' @param epsilon,delta The loss of the release.
#' @param ... Parameters of the estimator.
#' @return A plan; printing it says in words what will be released.
#' @export
vw_plan <- function(service, dataset, estimator = "private-forest", epsilon = 1, delta = 0, ...) {
  parameters <- list(...)
  if (length(parameters) == 0) parameters <- structure(list(), names = character())
  asked <- list(estimator = estimator, epsilon = epsilon, delta = delta, parameters = parameters)
  made <- ask(service, "POST", paste0("/datasets/", dataset, "/plans"), asked)
  as_plan(service, made$id)
}

as_plan <- function(service, id) {
  found <- ask(service, "GET", paste0("/plans/", id))
  structure(list(service = service, facts = found), class = "veilwood_plan")
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
#' For custodians: signs the hash of the plan that was read.
#'
#' @param service From [veilwood_service()], with a custodian's token.
#' @param plan From [vw_plan()].
#' @return The plan, signed.
#' @export
vw_sign <- function(service, plan) {
  asked <- list(fingerprint = plan$facts$fingerprint)
  ask(service, "POST", paste0("/plans/", plan$facts$id, "/signature"), asked)
  as_plan(service, plan$facts$id)
}

#' Run a signed plan
#'
#' Waits until it is done. A request that is lost on its way is sent again, and never charged twice.
#'
#' @param plan From [vw_plan()], signed by a custodian since.
#' @param wait Seconds to wait.
#' @return A model, for [predict()], [vw_certificate()] and [vw_answer()].
#' @export
vw_fit <- function(plan, wait = 3600) {
  service <- plan$service
  job <- ask(service, "POST", paste0("/plans/", plan$facts$id, "/jobs"), key = new_key())
  until <- Sys.time() + wait
  while (job$state %in% c("queued", "running")) {
    if (Sys.time() > until) stop("job ", job$id, " is still ", job$state, ".", call. = FALSE)
    Sys.sleep(0.2)
    job <- ask(service, "GET", paste0("/jobs/", job$id))
  }
  if (job$state != "done") stop("job ", job$id, " ", job$state, ": ", job$message, call. = FALSE)
  vw_model(service, job$id)
}

#' A model by its number
#'
#' @param service From [veilwood_service()].
#' @param id The number of the model.
#' @return A model.
#' @export
vw_model <- function(service, id) {
  found <- ask(service, "GET", paste0("/models/", id))
  structure(list(service = service, id = id, facts = found), class = "veilwood_model")
}

#' @export
print.veilwood_model <- function(x, ...) {
  cat(x$facts$estimator, " on ", x$facts$dataset, " (", x$id, ")\n", sep = "")
  if (!is.null(x$facts$certificate)) print(vw_certificate(x))
  invisible(x)
}

#' The certificate of a model
#'
#' @param model From [vw_fit()] or [vw_model()].
#' @return What is promised, to protect whom, and where the spend is recorded.
#' @export
vw_certificate <- function(model) {
  facts <- model$facts$certificate
  if (is.null(facts)) stop("this model has no certificate: its answers have.", call. = FALSE)
  structure(facts, class = "veilwood_certificate")
}

#' @export
print.veilwood_certificate <- function(x, ...) {
  cat("epsilon ", x$epsilon, ", delta ", x$delta, ", protects ", x$unit, " (", x$adjacency, ")\n", sep = "")
  cat(x$ledger, ", entry ", x$ledger_entry, "; plan ", x$plan_hash, "\n", sep = "")
  invisible(x)
}

rows_of <- function(data) {
  if (!is.data.frame(data) || nrow(data) == 0) stop("give a data frame with at least one row.", call. = FALSE)
  texts <- vapply(data, is.factor, NA)
  data[texts] <- lapply(data[texts], as.character)
  lapply(seq_len(nrow(data)), function(i) lapply(data, function(column) column[[i]]))
}

#' Predict for new rows
#'
#' Free: a model that was trained privately may be asked as often as one likes.
#'
#' @param object From [vw_fit()] or [vw_model()].
#' @param newdata A data frame with the columns of the schema.
#' @param type `response` for classes or numbers, `prob` for a matrix of probabilities.
#' @param ... Not used.
#' @return A vector, or a matrix with a column for each class.
#' @importFrom stats predict
#' @export
predict.veilwood_model <- function(object, newdata, type = c("response", "prob"), ...) {
  type <- match.arg(type)
  found <- ask(object$service, "POST", paste0("/models/", object$id, "/predict"), list(rows = rows_of(newdata)))
  if (type == "response") return(unlist(found$predictions))
  if (is.null(found$probabilities)) stop("a regression has no probabilities.", call. = FALSE)
  do.call(rbind, lapply(found$probabilities, unlist))
}

#' Private answers at a price
#'
#' `vw_quote` says what a batch would cost, for free. `vw_answer` charges it before anything is computed; the same batch
#' again is free.
#'
#' @param model A model that answers at a price.
#' @param questions A data frame; questions are public.
#' @param epsilon What the batch may cost; the plan's, if not given.
#' @return The quote, or the answers with their certificate.
#' @export
vw_quote <- function(model, questions, epsilon = NULL) {
  ask(model$service, "POST", paste0("/models/", model$id, "/quote"), batch(questions, epsilon))
}

#' @rdname vw_quote
#' @export
vw_answer <- function(model, questions, epsilon = NULL) {
  found <- ask(model$service, "POST", paste0("/models/", model$id, "/answers"), batch(questions, epsilon))
  list(labels = unlist(found$labels), certificate = structure(found$certificate, class = "veilwood_certificate"))
}

batch <- function(questions, epsilon) {
  asked <- list(rows = rows_of(questions))
  if (!is.null(epsilon)) asked$epsilon <- epsilon
  asked
}
