package contexts

import (
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

// Cells of one context, one after the other.
func TestJava(t *testing.T) {
	s := newContexts(t, "java")
	for _, tt := range []struct {
		name, code string
		want       string // everything in order
		err        string
		exit       int
		set        func(*Request)
	}{
		{name: "a value", code: "int x = 20;\nx + 22", want: "<42 true>"},
		{name: "what was left", code: `System.out.println("x " + x);`, want: "x 20\n"},
		{name: "nothing is seen of a declaration", code: "String y = \"a\";"},
		{name: "nor of an assignment", code: "x = 21;"},
		{name: "a string", code: "y + x", want: `<"a21" true>`},
		{name: "a method, a class and an import", code: "import java.time.Duration;\nint twice(int n) {\n  return 2 * n;\n}\nclass Point { int a = twice(2); }\nnew Point().a + Duration.ofHours(1).toMinutes()", want: "<64 true>"},
		{name: "a collection", code: "List.of(1, 2).stream().map(n -> twice(n)).collect(Collectors.toList())", want: "<[2, 4] true>"},
		{name: "in order", code: "System.out.print(\"a\"); new ProcessBuilder(\"echo\", \"b\").inheritIO().start().waitFor(); System.out.println(\"c\"); 4", want: "ab\nc\n<4 true>"},
		{name: "a letter of no ASCII", code: "\"\u00e9\u4e2d\"", want: "<\"\u00e9\u4e2d\" true>"},
		{name: "an exception", code: "int zero = 0;\n1 / zero", err: "java.lang.ArithmeticException: / by zero", exit: 1},
		{name: "a class of exception", code: `class Own extends RuntimeException { Own(String m) { super(m); } }; throw new Own("m");`, err: "Own: m", exit: 1},
		{name: "a type that does not fit", code: "int bad = \"a\";", err: "CompileError: incompatible types: ", exit: 1},
		{name: "no end", code: "if (true) {", err: "CompileError: reached end of file while parsing", exit: 1},
		{name: "it lives on", code: "x", want: "<21 true>"},
		{name: "declared again", code: "String x = \"now\"; x", want: `<"now" true>`},
		{name: "nothing but a comment", code: "// nothing\n"},
		{name: "variables of one cell", code: `System.getenv("A") + System.getProperty("B")`, want: `<"12" true>`, set: func(r *Request) { r.Env = map[string]string{"A": "1", "B": "2"} }},
		{name: "are gone after it", code: `System.getenv("A") + System.getProperty("B", "-")`, want: `<"null-" true>`},
		{name: "another folder", code: "1", err: "UnsupportedOperationException: a Java interpreter stays in its folder, ", exit: 1, set: func(r *Request) { r.Cwd = "/usr" }},
		{name: "input", code: "Scanner in = new Scanner(System.in); in.nextInt() + in.nextInt()", want: "<3 true>", set: func(r *Request) { r.Stdin = []byte("1\n2\n") }},
		{name: "another input", code: "new String(System.in.readAllBytes())", want: `<"three" true>`, set: func(r *Request) { r.Stdin = []byte("three") }},
		{name: "nobody is asked", code: "System.in.read()", err: "java.lang.UnsupportedOperationException: System.in cannot ask anybody", exit: 1},
		{name: "what is not there yet", code: "int later() { return other(); }"},
		{name: "cannot be used", code: "later()", err: "jdk.jshell.UnresolvedReferenceException: int later() { return other(); } needs method other()", exit: 1},
		{name: "now it is there", code: "int other() { return 5; }\nlater()", want: "<5 true>"},
		{name: "no descriptor of ours", code: `new ProcessBuilder("bash", "-c", "for i in {3..9}; do { true <&$i; } 2>/dev/null && readlink /proc/self/fd/$i; done").inheritIO().start().waitFor()`, want: "<1 true>"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req := Request{Code: tt.code, Timeout: time.Minute}
			if tt.set != nil {
				tt.set(&req)
			}
			got, r := execute(t, s, "java", req)
			all := strings.Join(r.all, "")
			if tt.name == "what is not there yet" {
				all = strings.Replace(all, "not usable yet: method other() must be declared first\n", "", 1)
			}
			if all != tt.want || got.ExitCode != tt.exit || got.Status != server.StatusOK || got.Lost {
				t.Errorf("got %q, %+v %+v, want %q", all, got, r.errs, tt.want)
			}
			wantError(t, r, tt.err)
		})
	}
	execute(t, s, "java", Request{Code: "int f(int n) {\n  return n / zero;\n}", Timeout: time.Minute})
	_, r := execute(t, s, "java", Request{Code: "int a = 1;\nf(a)", Timeout: time.Minute})
	want := "java.lang.ArithmeticException: / by zero\n\tat f (cell-27:2)\n\tat (cell-28:2)\n"
	if len(r.errs) != 1 || r.errs[0][2] != want {
		t.Errorf("the stack is %q, want %q", r.errs, want)
	}
	_, r = execute(t, s, "java", Request{Code: "int b = 1;\nint c = b +\n  nothing;", Timeout: time.Minute})
	want = "cell-29:3: error: cannot find symbol\n  symbol:   variable nothing\n  location: class \n  nothing;\n  ^\n"
	if len(r.errs) != 1 || r.errs[0][2] != want {
		t.Errorf("the diagnostic is %q, want %q", r.errs, want)
	}
}

// An interrupt and a timeout end what runs and leave the state.
func TestJavaInterrupt(t *testing.T) {
	s := newContexts(t, "java")
	for name, code := range map[string]string{
		"a loop":    `System.out.println("go"); while (true);`,
		"a sleep":   `System.out.println("go"); Thread.sleep(1000000);`,
		"a program": `System.out.println("go"); new ProcessBuilder("sleep", "1000").start().waitFor(); System.out.println("no");`,
		"a catch":   `System.out.println("go"); while (true) try { Thread.sleep(10); } catch (Exception e) {}`,
	} {
		t.Run(name, func(t *testing.T) { interruptKeeps(t, s, "java", "int kept = 1;", code, "kept", "1") })
	}
}

// A JVM that exits ends with its code, and the next cell has a new one.
func TestJavaExits(t *testing.T) {
	s := newContexts(t, "java")
	result, _ := execute(t, s, "java", Request{Code: "int x = 1; System.exit(7);", Timeout: time.Minute})
	if result.Status != server.StatusOK || result.ExitCode != 7 || !result.Lost {
		t.Errorf("ended with %+v", result)
	}
	if _, r := execute(t, s, "java", Request{Code: "x", Timeout: time.Minute}); len(r.errs) != 1 || r.errs[0][0] != "CompileError" || !r.started.Restarted {
		t.Errorf("afterwards it told %q, %+v", r.errs, r.started)
	}
}

// The next owner of a copied Sandbox draws other numbers than the copy.
func TestJavaReseed(t *testing.T) {
	field := `var field = Class.forName("java.lang.Math$RandomNumberGeneratorHolder").getDeclaredField("randomNumberGenerator"); field.setAccessible(true); `
	reseeds(t, "java", "java", "Math.random(); "+field+"((Random) field.get(null)).setSeed(1);", "Math.random()")
}
