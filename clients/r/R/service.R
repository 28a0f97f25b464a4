# SPDX-License-Identifier: Apache-2.0
# Requests to a service. Requests that may charge a ledger carry a key, so a retry returns the outcome of the first.

tries <- 5

#' Connect to a service
#'
#' @param address Address of the service, such as `https://forest.example`.
#' @param token Token of an account. Prefer the environment variable.
#' @return A connection, the first argument of the other functions.
#' @examples
#' service <- veilwood_service("http://127.0.0.1:8400", token = "vw_...")
#' @export
veilwood_service <- function(address = Sys.getenv("VEILWOOD_SERVICE"), token = Sys.getenv("VEILWOOD_TOKEN")) {
  if (!nzchar(address)) stop("the address of the service is missing: set VEILWOOD_SERVICE.", call. = FALSE)
  if (!nzchar(token)) stop("the token is missing: set VEILWOOD_TOKEN.", call. = FALSE)
  structure(list(address = sub("/+$", "", address), token = token), class = "veilwood_service")
}

#' @export
print.veilwood_service <- function(x, ...) {
  cat("Veilwood service at", x$address, "\n") # never the token
  invisible(x)
}

# Send a request, with retries after errors of the network or the service.
send_request <- function(service, method, path, body = NULL, key = NULL) {
  request <- httr2::request(paste0(service$address, "/v1", path))
  request <- httr2::req_method(request, method)
  request <- httr2::req_headers(request, Authorization = paste("Bearer", service$token))
  if (!is.null(key)) request <- httr2::req_headers(request, `Idempotency-Key` = key)
  if (!is.null(body)) {
    text <- jsonlite::toJSON(body, auto_unbox = TRUE, digits = NA, na = "null", null = "null")
    request <- httr2::req_body_raw(request, as.character(text), type = "application/json")
  } else if (method == "POST") {
    request <- httr2::req_body_raw(request, "", type = "application/json")
  }
  request <- httr2::req_error(request, is_error = function(response) FALSE)
  wait <- 0.2
  for (try in seq_len(tries)) {
    response <- tryCatch(httr2::req_perform(request), error = identity)
    if (!inherits(response, "error")) {
      status <- httr2::resp_status(response)
      if (status < 500 && status != 429) return(parse_response(response, status))
    }
    Sys.sleep(wait)
    wait <- 2 * wait
  }
  stop("the service at ", service$address, " does not respond.", call. = FALSE)
}

parse_response <- function(response, status) {
  text <- httr2::resp_body_string(response)
  content <- tryCatch(jsonlite::fromJSON(text, simplifyVector = FALSE), error = function(error) list())
  if (status < 400) return(content)
  detail <- if (is.null(content$detail)) paste("the service returned status", status) else content$detail
  kind <- if (identical(content$title, "budget")) "veilwood_budget" else "veilwood_refused"
  stop(structure(
    class = c(kind, "veilwood_error", "error", "condition"),
    list(message = detail, call = NULL, status = status, remaining = content$remaining)
  ))
}

new_key <- function() {
  paste(sprintf("%02x", as.integer(random_bytes(16))), collapse = "")
}

# A key must only be unique. Without /dev/urandom it is made of the time, the process id and R's random numbers.
random_bytes <- function(n) {
  source <- "/dev/urandom"
  if (file.exists(source)) {
    file <- file(source, "rb", raw = TRUE)
    on.exit(close(file))
    return(readBin(file, "raw", n))
  }
  text <- paste(format(Sys.time(), "%Y%m%d%H%M%OS6"), Sys.getpid(), paste(stats::runif(4), collapse = ""))
  utf8ToInt(paste(rev(strsplit(text, "")[[1]])[seq_len(n)], collapse = ""))
}
