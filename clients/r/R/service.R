# SPDX-License-Identifier: Apache-2.0
# Requests to a service. What may spend carries a key, so that a retry is answered with the outcome of the first.

tries <- 5

#' A running service
#'
#' @param address Of the service, such as `https://forest.example`.
#' @param token As the service shows it once; better kept in the environment than typed.
#' @return An object that the other functions take first.
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

# Send a request, again where the network or the service failed on the way.
ask <- function(service, method, path, body = NULL, key = NULL) {
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
      if (status < 500 && status != 429) return(read(response, status))
    }
    Sys.sleep(wait)
    wait <- 2 * wait
  }
  stop("the service at ", service$address, " does not answer.", call. = FALSE)
}

read <- function(response, status) {
  text <- httr2::resp_body_string(response)
  found <- tryCatch(jsonlite::fromJSON(text, simplifyVector = FALSE), error = function(error) list())
  if (status < 400) return(found)
  detail <- if (is.null(found$detail)) paste("the service answered", status) else found$detail
  kind <- if (identical(found$title, "budget")) "veilwood_budget" else "veilwood_refused"
  stop(structure(
    class = c(kind, "veilwood_error", "error", "condition"),
    list(message = detail, call = NULL, status = status, remaining = found$remaining)
  ))
}

new_key <- function() {
  paste(sprintf("%02x", as.integer(random_bytes(16))), collapse = "")
}

# A key only has to be new: from the clock, the process and the system's randomness where there is one.
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
