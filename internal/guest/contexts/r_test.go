package contexts

import (
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

// Cells of one context, one after the other.
func TestR(t *testing.T) {
	s := newContexts(t, "R")
	for _, tt := range []struct {
		name, code string
		want       string // everything in order
		err        string
		exit       int
		set        func(*Request)
	}{
		{name: "a value", code: "x <- 20\nx + 22", want: "<[1] 42 true>"},
		{name: "what was left", code: "print(x)", want: "[1] 20\n"},
		{name: "nothing is seen of an assignment", code: "y <- 1"},
		{name: "values on the way are printed", code: "'a'\ncat('b\\n')\ninvisible(3)\n4", want: "[1] \"a\"\nb\n<[1] 4 true>"},
		{name: "children print in order", code: "cat('a\\n'); system('echo b'); cat('c\\n')", want: "a\nb\nc\n"},
		{name: "a function", code: "f <- function(n) if (n > 0) f(n - 1) else stop('deep')"},
		{name: "fails here", code: "f(1)", err: "simpleError: deep", exit: 1},
		{name: "a class of error", code: "stop(structure(class = c('own', 'error', 'condition'), list(message = 'm', call = NULL)))", err: "own: m", exit: 1},
		{name: "syntax", code: "if (", err: "ParseError: ", exit: 1},
		{name: "it lives on", code: "x", want: "<[1] 20 true>"},
		{name: "a letter of no ASCII", code: "'\u00e9\u4e2d'", want: "<[1] \"\u00e9\u4e2d\" true>"},
		{name: "variables of one cell", code: "Sys.getenv(c('A', 'B'), names = FALSE)", want: "<[1] \"1\" \"2\" true>", set: func(r *Request) { r.Env = map[string]string{"A": "1", "B": "2"} }},
		{name: "are gone after it", code: "Sys.getenv('A', unset = NA)", want: "<[1] NA true>"},
		{name: "variables that the user sets", code: "Sys.setenv(HOME = '/x'); Sys.unsetenv('LANG')"},
		{name: "stay", code: "Sys.getenv('HOME')", want: "<[1] \"/x\" true>"},
		{name: "a folder for one cell", code: "cat(getwd())", want: "/usr", set: func(r *Request) { r.Cwd = "/usr" }},
		{name: "is left after it", code: "getwd() == '/usr'", want: "<[1] FALSE true>"},
		{name: "no such folder", code: "1", err: "simpleError: cannot change working directory: /no-such", exit: 1, set: func(r *Request) { r.Cwd = "/no-such" }},
		{name: "input", code: "a <- readline(); cat(a, readline('? '))", want: "? 1 2", set: func(r *Request) { r.Stdin = []byte("1\n2\n") }},
		{name: "another input", code: "readLines('stdin')", want: "<[1] \"3\" true>", set: func(r *Request) { r.Stdin = []byte("3\n") }},
		{name: "for a child", code: "system('cat')", want: "four", set: func(r *Request) { r.Stdin = []byte("four") }},
		{name: "nobody is asked", code: "readline('? ')", err: "simpleError: readline() cannot ask anybody", exit: 1},
		{name: "no descriptor of ours", code: "system(\"bash -c 'for i in {3..9}; do { true <&$i; } 2>/dev/null && readlink /proc/self/fd/$i; done' | grep pipe\")"},
		{name: "connections", code: "con <- file(tempfile(), 'w'); closeAllConnections(); tryCatch(isOpen(con), error = function(e) 'closed')", want: "<[1] \"closed\" true>"},
		{name: "a method's print", code: "print.own <- function(x) cat('own print\\n'); structure(1, class = 'own')", want: "<own print true>"},
		{name: "the last value", code: "6 * 7; .Last.value", want: "[1] 42\n<[1] 42 true>"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req := Request{Code: tt.code, Timeout: time.Minute}
			if tt.set != nil {
				tt.set(&req)
			}
			got, r := execute(t, s, "r", req)
			if all := strings.Join(r.all, ""); all != tt.want || got.ExitCode != tt.exit || got.Status != server.StatusOK || got.Lost {
				t.Errorf("got %q, %+v %+v, want %q", all, got, r.errs, tt.want)
			}
			wantError(t, r, tt.err)
		})
	}
	_, r := execute(t, s, "r", Request{Code: "f(1)", Timeout: time.Minute})
	want := "Error in f(n - 1): deep\nTraceback:\n1. f(1)\n2. f(n - 1)\n3. stop(\"deep\")\n"
	if len(r.errs) != 1 || r.errs[0][2] != want {
		t.Errorf("the traceback is %q, want %q", r.errs, want)
	}
	_, r = execute(t, s, "r", Request{Code: "warning('w1'); message('m'); as.integer('x'); cat('out\\n')", Timeout: time.Minute})
	if r.out[1] != "Warning message:\nw1\nm\nWarning message:\nNAs introduced by coercion\n" || len(r.errs) != 0 {
		t.Errorf("of warnings it says %q, %v", r.out, r.errs)
	}
}

// wantError checks that a cell failed by an error that begins so, or not at all.
func wantError(t *testing.T, r *told, begin string) {
	t.Helper()
	err := ""
	if len(r.errs) > 0 {
		err = r.errs[0][0] + ": " + r.errs[0][1]
	}
	if !strings.HasPrefix(err, begin) || (begin == "") != (err == "") {
		t.Errorf("the error is %q, want %q", r.errs, begin)
	}
}

func TestRRichResults(t *testing.T) {
	s := newContexts(t, "R")
	_, r := execute(t, s, "r", Request{Code: "data.frame(a = 1:2, b = c('<x>', 'y'))", Timeout: time.Minute})
	html := "<table>\n<thead><tr><th></th><th>a</th><th>b</th></tr></thead>\n<tbody>\n" +
		"<tr><th>1</th><td>1</td><td>&lt;x&gt;</td></tr>\n<tr><th>2</th><td>2</td><td>y  </td></tr>\n</tbody>\n</table>\n"
	if len(r.results) != 1 || r.results[0]["text/plain"] != "  a   b\n1 1 <x>\n2 2   y" || r.results[0]["text/html"] != html {
		t.Errorf("a table is %q", r.results)
	}
	_, r = execute(t, s, "r", Request{Code: "plot(1:3)\ncat('between\\n')\nhist(c(1, 2, 2))\n7", Timeout: time.Minute})
	pictures := 0
	for _, data := range r.results {
		if strings.HasPrefix(data["image/png"], "iVBORw0KGgo") || strings.HasPrefix(data["application/pdf"], "JVBER") {
			pictures++
		}
	}
	if pictures != 2 || len(r.results) != 3 || r.results[2]["text/plain"] != "[1] 7" || r.out[0] != "between\n" || len(r.errs) != 0 {
		t.Errorf("two plots are %.300q and %.300q, %q", r.results, r.out, r.errs)
	}
	if _, r = execute(t, s, "r", Request{Code: "length(dev.list())", Timeout: time.Minute}); len(r.results) != 1 || r.results[0]["text/plain"] != "[1] 0" {
		t.Errorf("afterwards: %q", r.results)
	}
	_, r = execute(t, s, "r", Request{Code: "for (i in 1:300) plot.new()", Timeout: time.Minute})
	if len(r.results) > maxResults || len(r.results) < 200 {
		t.Errorf("of 300 plots came %d", len(r.results))
	}
}

// An interrupt and a timeout end what runs and leave the state.
func TestRInterrupt(t *testing.T) {
	s := newContexts(t, "R")
	for name, code := range map[string]string{
		"a loop":    "cat('go\\n'); repeat {}",
		"a sleep":   "cat('go\\n'); Sys.sleep(1000)",
		"a program": "cat('go\\n'); system('sleep 1000'); cat('no\\n')",
		"a catch":   "cat('go\\n'); repeat tryCatch(repeat {}, error = function(e) NULL)",
	} {
		t.Run(name, func(t *testing.T) { interruptKeeps(t, s, "r", "kept <- 1", code, "kept", "[1] 1") })
	}
}

// interruptKeeps has code run that says "go", and interrupts it: its context
// still has what the code before it left.
func interruptKeeps(t *testing.T, s *Contexts, language, before, code, after, want string) {
	t.Helper()
	if result, r := execute(t, s, language, Request{Code: before, Timeout: time.Minute}); result.ExitCode != 0 {
		t.Fatalf("ended with %+v, %q", result, r.errs)
	}
	r := &told{}
	r.on = func(out string) error {
		if out == "go\n" {
			_, err := s.Interrupt(language)
			return err
		}
		return nil
	}
	result, err := s.Execute(t.Context(), Target{Language: language}, Request{Code: code, Timeout: time.Minute}, r)
	if err != nil || !result.Interrupted || result.Lost || result.ExitCode != 130 || strings.Contains(r.out[0], "no") {
		t.Errorf("ended with %+v, %v and told %q %q", result, err, r.out, r.errs)
	}
	wantError(t, r, "KeyboardInterrupt: ")
	if _, r := execute(t, s, language, Request{Code: after, Timeout: time.Minute}); len(r.results) != 1 || r.results[0]["text/plain"] != want {
		t.Errorf("afterwards it told %q %q", r.results, r.errs)
	}
}

// R that quits ends with its code, and the next cell has a new one.
func TestRQuits(t *testing.T) {
	s := newContexts(t, "R")
	result, _ := execute(t, s, "r", Request{Code: "x <- 1; quit(status = 7)", Timeout: time.Minute})
	if result.Status != server.StatusOK || result.ExitCode != 7 || !result.Lost {
		t.Errorf("ended with %+v", result)
	}
	if _, r := execute(t, s, "r", Request{Code: "exists('x')", Timeout: time.Minute}); len(r.results) != 1 || r.results[0]["text/plain"] != "[1] FALSE" || !r.started.Restarted {
		t.Errorf("afterwards it told %q, %+v", r.results, r.started)
	}
}

// The next owner of a copied Sandbox draws other numbers than the copy.
func TestRReseed(t *testing.T) { reseeds(t, "r", "R", "set.seed(1)", "runif(1)") }

// reseeds checks that the numbers that draw gives do not go on from seed when the
// Sandbox has another owner.
func reseeds(t *testing.T, language, program, seed, draw string) {
	t.Helper()
	s := newContexts(t, program)
	value := func(code string) string {
		_, r := execute(t, s, language, Request{Code: code, Timeout: time.Minute})
		if len(r.results) != 1 {
			t.Fatalf("%s told %q %q", code, r.results, r.errs)
		}
		return r.results[0]["text/plain"]
	}
	again := func() string {
		execute(t, s, language, Request{Code: seed, Timeout: time.Minute})
		return value(draw)
	}
	first := again()
	if second := again(); first != second {
		t.Fatalf("a seed gives %s and %s: nothing is shown", first, second)
	}
	execute(t, s, language, Request{Code: seed, Timeout: time.Minute})
	s.byID(language).worker.owner.boot++
	if other := value(draw); other == first {
		t.Errorf("the numbers go on as they would have: %s", other)
	}
}
