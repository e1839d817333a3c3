# The R interpreter of a context.
#
# It is read from a descriptor and run by the Template's R, whatever that is,
# with nothing but the packages that R comes with. Frames go over descriptors of
# their own; 0, 1 and 2 are the user's. A frame is its length in four bytes and a
# list of texts, each after its length; the first says what it is.
#
# `requests` is open already, by whoever read this.

MAX_DATA <- 8 * 2^20 # bytes of one representation
MAX_TEXT <- 2^20 # characters of text/plain
MAX_RESULTS <- 256L
MAX_ROWS <- 60L # of a table in html

here <- environment()
worker_frame <- quote(cloud_sandbox_cell) # what the user's calls stand above
acks <- file("/proc/self/fd/5", "reb", raw = TRUE)
events <- file("/proc/self/fd/4", "web", raw = TRUE)
ours <- c(requests, acks, events)
parallel:::closeFD(3:5) # those of connections do not go to programs that R starts

waiting <- raw() # frames that leave with the next
results_left <- 0L
given <- FALSE # this execution has something to read
input <- NULL # what readline reads it from
calls <- NULL # where the error came from

# Frames.

number <- function(n) writeBin(as.integer(n), raw(), size = 4L, endian = "big")

frame <- function(...) {
  parts <- lapply(list(...), function(text) {
    data <- if (is.raw(text)) text else charToRaw(enc2utf8(as.character(text)))
    c(number(length(data)), data)
  })
  body <- do.call(c, parts)
  c(number(length(body)), body)
}

# send is never broken off: half a frame would be the end.
send <- function(..., acknowledged = FALSE) suspendInterrupts({
  writeBin(c(waiting, frame(...)), events)
  flush(events)
  waiting <<- raw()
  if (acknowledged && length(readBin(acks, "raw", 1L)) == 0L) quit("no")
})

receive <- function() {
  size <- readBin(requests, "integer", 1L, 4L, endian = "big")
  if (length(size) == 0L) quit("no") # the Guest has let go
  body <- readBin(requests, "raw", size)
  texts <- character()
  at <- 0L
  while (at < size) {
    n <- readBin(body[at + 1:4], "integer", 1L, 4L, endian = "big")
    text <- if (n > 0L) rawToChar(body[at + 4L + seq_len(n)]) else ""
    Encoding(text) <- "UTF-8"
    texts <- c(texts, text)
    at <- at + 4L + n
  }
  texts
}

# Results.

base64 <- function(data) {
  if (length(data) == 0L) return("")
  alphabet <- charToRaw("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
  missing <- (3L - length(data) %% 3L) %% 3L
  x <- matrix(as.integer(c(data, raw(missing))), 3L)
  digits <- rbind(
    x[1, ] %/% 4L, x[1, ] %% 4L * 16L + x[2, ] %/% 16L,
    x[2, ] %% 16L * 4L + x[3, ] %/% 64L, x[3, ] %% 64L
  )
  text <- alphabet[digits + 1L]
  if (missing > 0L) text[length(text) - seq_len(missing) + 1L] <- charToRaw("=")
  rawToChar(text)
}

emit <- function(data, main) {
  results_left <<- results_left - 1L
  if (results_left < 0L) return(send("dropped"))
  texts <- list()
  for (mime in names(data)) {
    text <- charToRaw(enc2utf8(data[[mime]]))
    if (length(text) <= MAX_DATA) texts <- c(texts, list(mime, text))
  }
  if (main) {
    waiting <<- c(waiting, do.call(frame, c(list("result", "1"), texts))) # what follows is the end of the cell
  } else {
    do.call(send, c(list("result", "0"), texts, acknowledged = TRUE))
  }
  invisible()
}

plain <- function(value) {
  lines <- utils::capture.output(if (isS4(value)) methods::show(value) else print(value))
  text <- paste(lines, collapse = "\n")
  if (nchar(text) > MAX_TEXT) {
    text <- sprintf("%s... (%d characters more)", substr(text, 1L, MAX_TEXT), nchar(text) - MAX_TEXT)
  }
  text
}

escaped <- function(text) {
  text <- gsub("&", "&amp;", text, fixed = TRUE)
  text <- gsub("<", "&lt;", text, fixed = TRUE)
  gsub(">", "&gt;", text, fixed = TRUE)
}

# html is a table of the first rows.
html <- function(table) {
  rows <- min(nrow(table), MAX_ROWS)
  shown <- utils::head(table, rows)
  cells <- vapply(shown, function(column) escaped(format(column)), character(rows))
  cells <- matrix(cells, rows, ncol(table))
  tagged <- function(tag, text) paste0("<", tag, ">", text, "</", tag, ">", collapse = "")
  lines <- vapply(seq_len(rows), function(i) {
    paste0("<tr>", tagged("th", escaped(row.names(shown)[i])), tagged("td", cells[i, ]), "</tr>\n")
  }, "")
  more <- if (nrow(table) > rows) sprintf("<p>%d rows &times; %d columns</p>\n", nrow(table), ncol(table)) else ""
  paste0(
    "<table>\n<thead><tr>", tagged("th", c("", escaped(names(table)))), "</tr></thead>\n<tbody>\n",
    paste(lines, collapse = ""), "</tbody>\n</table>\n", more
  )
}

show_value <- function(value) {
  data <- list("text/plain" = plain(value))
  if (is.data.frame(value) && ncol(value) > 0L) data[["text/html"]] <- tryCatch(html(value), error = function(e) NULL)
  show_plots(TRUE)
  if (nzchar(data[["text/plain"]])) emit(data, TRUE) # else its print drew a picture
}

# Plots. The device that a plot opens when there is none writes a file a page.

pictures <- list(
  png = list(mime = "image/png", open = function(file) grDevices::png(file, 800, 600, res = 100, type = "cairo")),
  svg = list(mime = "image/svg+xml", open = function(file) grDevices::svg(file, 8, 6)),
  pdf = list(mime = "application/pdf", open = function(file) grDevices::pdf(file, 8, 6, onefile = FALSE))
)
plots <- NULL # the folder of those files
device <- 0L

# open_device opens the best device that there is.
open_device <- function(...) {
  if (is.null(plots)) dir.create(plots <<- tempfile("plots"))
  before <- grDevices::dev.list()
  for (kind in names(pictures)) {
    opened <- tryCatch({
      pictures[[kind]]$open(file.path(plots, paste0("%05d.", kind)))
      setdiff(grDevices::dev.list(), before)
    }, error = function(e) NULL, warning = function(w) NULL)
    if (length(opened) == 1L) {
      device <<- opened
      return(invisible())
    }
  }
  stop("no device can draw here")
}

# show_plots sends the pages that are done, all of them when over.
show_plots <- function(over) {
  if (is.null(plots)) return()
  if (over && device > 0L && device %in% grDevices::dev.list()) grDevices::dev.off(device)
  for (file in sort(list.files(plots, full.names = TRUE))) {
    kind <- pictures[[tools::file_ext(file)]]
    size <- file.size(file)
    # A page is written when it is done, but for svg and pdf, which begin with it.
    if (!over && (kind$mime != "image/png" || is.na(size) || size == 0)) next
    suspendInterrupts({
      data <- readBin(file, "raw", size)
      unlink(file)
      text <- if (kind$mime == "image/svg+xml") rawToChar(data) else base64(data)
      emit(stats::setNames(list(text), kind$mime), FALSE)
    })
  }
}

# Running code.

report <- function(name, value, trace) {
  cut <- function(text) substr(paste(text, collapse = "\n"), 1L, MAX_TEXT)
  send("error", name, cut(value), cut(trace))
}

# called is the call that a condition comes from, unless it is the cell itself.
called <- function(condition) {
  call <- conditionCall(condition)
  if (!identical(call, quote(eval(expression, globalenv())))) call
}

# trace is what R shows of an error, and the calls that led to it.
trace <- function(e) {
  call <- called(e)
  where <- if (is.null(call)) "Error" else paste("Error in", deparse(call, nlines = 1L)[1])
  lines <- paste0(where, ": ", conditionMessage(e))
  if (length(calls) > 0L) {
    shown <- vapply(calls, function(call) deparse(call, nlines = 1L)[1], "")
    lines <- c(lines, "Traceback:", paste0(seq_along(shown), ". ", shown))
  }
  c(lines, "")
}

# note_error remembers the user's calls that are under way.
note_error <- function(e) {
  all <- sys.calls()
  at <- which(vapply(all, function(call) identical(call[[1]], worker_frame), NA))
  if (length(at) == 0L) return()
  all <- all[-seq_len(at[length(at)] + 3L)] # withVisible and eval, which is two
  handler <- which(vapply(all, function(call) identical(call[[1]], quote(.handleSimpleError)), NA))
  calls <<- if (length(handler) > 0L) all[seq_len(handler[1] - 1L)] else all[-length(all)]
}

# say_warning says at once what R says only between commands.
say_warning <- function(w) {
  level <- getOption("warn")
  if (is.null(level)) level <- 0
  if (level >= 2) return() # R makes an error of it
  if (level >= 0) {
    call <- called(w)
    where <- if (is.null(call)) "Warning message:\n" else paste0("Warning message:\nIn ", deparse(call, nlines = 1L)[1], " : ")
    cat(where, conditionMessage(w), "\n", sep = "", file = stderr())
  }
  invokeRestart("muffleWarning")
}

cloud_sandbox_cell <- function(expression) withVisible(eval(expression, globalenv()))

# run evaluates what code says, one expression after the other, and shows what
# they give as R does: the last one is the cell's value.
run <- function(code, name) {
  expressions <- parse(text = code, keep.source = TRUE, srcfile = srcfilecopy(name, strsplit(code, "\n", fixed = TRUE)[[1]]))
  for (i in seq_along(expressions)) {
    got <- cloud_sandbox_cell(expressions[[i]])
    assign(".Last.value", got$value, baseenv())
    if (got$visible) {
      if (i == length(expressions)) show_value(got$value)
      else if (isS4(got$value)) methods::show(got$value)
      else print(got$value)
    }
    show_plots(FALSE)
  }
}

# attempt runs a cell and returns its exit code.
attempt <- function(code, name) {
  calls <<- NULL
  tryCatch({
    allowInterrupts(withCallingHandlers(run(code, name), warning = say_warning, error = note_error))
    0L
  }, interrupt = function(e) {
    report("KeyboardInterrupt", "the execution was interrupted", "KeyboardInterrupt: the execution was interrupted\n")
    130L
  }, error = function(e) {
    name <- class(e)[1]
    if (is.null(calls) && is.call(conditionCall(e)) && identical(conditionCall(e)[[1]], quote(parse))) {
      report("ParseError", conditionMessage(e), paste0("Error: ", conditionMessage(e), "\n"))
    } else {
      report(name, conditionMessage(e), trace(e))
    }
    1L
  })
}

# finish shows the plots that are left.
finish <- function() {
  tryCatch(allowInterrupts(show_plots(TRUE)), error = function(e) NULL, interrupt = function(e) NULL)
  if (!is.null(plots)) unlink(file.path(plots, "*"))
}

# surround changes variables and the folder, and returns what undoes it.
surround <- function(env, cwd) {
  # Of no names Sys.getenv returns all there are.
  before <- if (length(env) > 0L) Sys.getenv(names(env), unset = NA, names = TRUE) else character()
  was <- if (nzchar(cwd)) setwd(cwd)
  if (length(env) > 0L) do.call(Sys.setenv, as.list(env))
  function() {
    Sys.unsetenv(names(before)[is.na(before)])
    if (!all(is.na(before))) do.call(Sys.setenv, as.list(before[!is.na(before)]))
    if (!is.null(was)) try(setwd(was), silent = TRUE)
  }
}

# reseed makes random numbers differ from those of any copy.
reseed <- function(seed) {
  set.seed(strtoi(substr(seed, 1L, 7L), 16L))
  if (RNGkind()[1] != "Mersenne-Twister") return()
  source <- file("/dev/urandom", "rb", raw = TRUE)
  on.exit(close(source))
  state <- get(".Random.seed", globalenv())
  fresh <- readBin(source, "integer", 624L)
  fresh[is.na(fresh)] <- 0L
  state[2L + seq_len(624L)] <- fresh
  assign(".Random.seed", state, globalenv())
}

execute <- function(count, code, cwd, stdin, seed, lasting, ...) {
  results_left <<- MAX_RESULTS
  tryCatch(allowInterrupts(Sys.sleep(0)), interrupt = function(e) NULL) # one that came too late
  if (nzchar(seed)) reseed(seed)
  given <<- stdin == "full"
  if (nzchar(stdin) && !is.null(input)) {
    close(input)
    input <<- NULL
  }
  pairs <- c(...)
  if (nzchar(lasting)) { # that many variables stay: this is a copy, and they say whose
    own <- pairs[seq_len(2L * as.integer(lasting))]
    pairs <- pairs[-seq_along(own)]
    do.call(Sys.setenv, stats::setNames(as.list(own[c(FALSE, TRUE)]), own[c(TRUE, FALSE)]))
  }
  env <- pairs[c(FALSE, TRUE)]
  names(env) <- pairs[c(TRUE, FALSE)]
  undo <- tryCatch(surround(env, cwd), error = function(e) e)
  if (inherits(undo, "error")) {
    report(class(undo)[1], paste0(conditionMessage(undo), ": ", cwd), "")
    return(1L)
  }
  status <- attempt(code, sprintf("<cell %s>", count))
  finish()
  undo()
  status
}

# What is changed in R itself.

replace <- function(name, value) {
  environment(value) <- here
  unlockBinding(name, baseenv())
  assign(name, value, baseenv())
  lockBinding(name, baseenv())
}

replace("readline", function(prompt = "") {
  if (!given) stop("readline() cannot ask anybody: give the execution its stdin, or set the value in the code", call. = FALSE)
  if (is.null(input)) input <<- file("stdin", "r")
  cat(prompt)
  line <- readLines(input, 1L, warn = FALSE)
  if (length(line) == 0L) "" else line
})

replace("closeAllConnections", function() {
  while (sink.number() > 0L) sink()
  for (i in setdiff(getAllConnections(), c(0:2, ours))) close(getConnection(i))
  input <<- NULL
  invisible()
})

# A program that R waits for keeps interrupts from it. One that was killed may
# have been so by an interrupt, which comes again at once.
heed <- function(status) if (identical(status, 9L) || identical(status, 137L)) Sys.sleep(0.3)
with_heed <- base::system
body(with_heed) <- call("{", quote(on.exit(heed(returnValue()))), body(base::system))
replace("system", with_heed)

unlockBinding(".Last.value", baseenv())
options(device = open_device)

serve <- function() repeat {
  texts <- receive()
  status <- do.call(execute, as.list(texts))
  send("done", status)
}
suspendInterrupts(serve())
