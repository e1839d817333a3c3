package contexts

import (
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

// Cells of one context, one after the other.
func TestJavaScript(t *testing.T) {
	s := newContexts(t, "node")
	for _, tt := range []struct {
		name, code string
		want       string // everything in order
		err        string
		exit       int
	}{
		{"a value", "const x = 20\nx + 22", "<42 true>", "", 0},
		{"what was left", "console.log(x)", "20\n", "", 0},
		{"const again", "const x = 21", "", "", 0},
		{"let as const", "let x = 22; x", "<22 true>", "", 0},
		{"class again", "class A { a() { return 1 } }; new A().a()", "<1 true>", "", 0},
		{"class once more", "class A { a() { return 2 } }\nnew A().a()", "<2 true>", "", 0},
		{"const after let", "const x = 23, { k } = { k: 1 }", "", "", 0},
		{"const after class", "const A = 1; class x2 {}; let x2b = `${(() => { const q = 1; return q })()}`; x2b", "<'1' true>", "", 0},
		{"class after const", "class A { a() { return 3 } }; new A().a()", "<3 true>", "", 0},
		{"var", "var w = 1", "", "", 0},
		{"var again", "var w = 2; w", "<2 true>", "", 0},
		{"let once more", "let x = 22", "", "", 0},
		{"const is const in a block", "{ const b = 1; b = 2 }", "", "TypeError: Assignment to constant variable.", 1},
		{"function", "function f() { return x }\nf()", "<22 true>", "", 0},
		{"no value for undefined", "undefined", "", "", 0},
		{"null is one", "null", "<null true>", "", 0},
		{"an object", "{ a: 1 }", "<{ a: 1 } true>", "", 0},
		{"a block", "{ let y = 1; y + 1 }", "<2 true>", "", 0},
		{"big", "2n ** 70n", "<1180591620717411303424n true>", "", 0},
		{"minus zero", "-0", "<-0 true>", "", 0},
		{"a symbol", "Symbol('s')", "<Symbol(s) true>", "", 0},
		{"in order", "console.log('a'); display(1); console.log('b'); display(2); console.error('c'); 3", "a\n<1 false>b\n<2 false>c\n<3 true>", "", 0},
		{"children print in order", "console.log('a'); require('child_process').execSync('echo b', {stdio: 'inherit'}); console.log('c')", "a\nb\nc\n", "", 0},
		{"await", "const v = await Promise.resolve(7); v", "<7 true>", "", 0},
		{"a promise is awaited", "await new Promise(r => setTimeout(r, 10, 'late'))", "<'late' true>", "", 0},
		{"for await", "for await (const z of [Promise.resolve(1), 2]) console.log(z)", "1\n2\n", "", 0},
		{"timers end with the cell", "setTimeout(() => console.log('later'), 20); 1", "later\n<1 true>", "", 0},
		{"import", "import os, { EOL as end } from 'os'; import * as p from 'node:path';\n[typeof os.cpus, end, p.join('a', 'b')].join()", "<'function,\\n,a/b' true>", "", 0},
		{"import is kept", "typeof p.join", "<'function' true>", "", 0},
		{"dynamic import", "(await import('node:fs')).existsSync('/')", "<true true>", "", 0},
		{"import in a string", "'import x from \"y\"' + `${'import z'}`", "<'import x from \"y\"import z' true>", "", 0},
		{"import.meta is an error", "import.meta", "", "SyntaxError", 1},
		{"an error", "null.x", "", "TypeError: Cannot read properties of null (reading 'x')", 1},
		{"a syntax error", "let 1", "", "SyntaxError", 1},
		{"a thrown text", "throw 'no'", "", "Error: no", 1},
		{"own error", "class E extends Error { name = 'E' }; throw new E('mine')", "", "E: mine", 1},
		{"a rejection", "await Promise.reject(new RangeError('r'))", "", "RangeError: r", 1},
		{"a rejection nobody awaits", "Promise.reject(new Error('lonely')); await new Promise(r => setTimeout(r, 50))", "", "Error: lonely", 1},
		{"a throw in a timer", "setTimeout(() => { throw new Error('timer') }, 1)", "", "Error: timer", 1},
		{"still there", "x", "<22 true>", "", 0},
		{"exitCode", "process.exitCode = 3", "<3 true>", "", 3},
		{"and no more", "1", "<1 true>", "", 0},
		{"strict is the code's own", "(function () { return this === globalThis })()", "<true true>", "", 0},
		{"regular expression", "/import [/]'/.test(\"import /'\")", "<true true>", "", 0},
		{"rich", "({ [Symbol.for('Jupyter.display')]: () => ({ 'text/html': '<b>' }), toString() { return 'x' } })", "", "", 0},
		{"last value", "1+1", "<2 true>", "", 0},
		{"nothing", "// a comment", "", "", 0},
		{"getter that throws", "({ get a() { throw 1 } })", "<{ a: [Getter] } true>", "", 0},
		{"require", "require('path').sep", "<'/' true>", "", 0},
		{"threads", "await new Promise((done, failed) => new (require('worker_threads').Worker)(`require('worker_threads').parentPort.postMessage(42)`, { eval: true }).on('message', done).on('error', failed))", "<42 true>", "", 0},
		{"arguments of node", "process.execArgv", "<[] true>", "", 0},
		{"WebAssembly", "(await WebAssembly.instantiate(new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0, 1, 7, 1, 96, 2, 127, 127, 1, 127, 3, 2, 1, 0, 7, 7, 1, 3, 97, 100, 100, 0, 0, 10, 9, 1, 7, 0, 32, 0, 32, 1, 106, 11]))).instance.exports.add(20, 22)", "<42 true>", "", 0},
		{"no traces of ours", "Object.keys(globalThis).filter(k => k.startsWith('__')).join()", "<'__filename,__dirname' true>", "", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, r := execute(t, s, "javascript", python(tt.code))
			if tt.name == "rich" {
				if len(r.results) != 1 || r.results[0]["text/html"] != "<b>" {
					t.Errorf("got %+v", r)
				}
				return
			}
			if all := strings.Join(r.all, ""); all != tt.want || got.ExitCode != tt.exit || got.Status != server.StatusOK {
				t.Errorf("got %q, %+v %+v, want %q", all, got, r.errs, tt.want)
			}
			err := ""
			if len(r.errs) > 0 {
				err = r.errs[0][0] + ": " + r.errs[0][1]
			}
			if !strings.HasPrefix(err, tt.err) || (tt.err == "") != (err == "") {
				t.Errorf("the error is %q, want %q", err, tt.err)
			}
			for _, e := range r.errs {
				t.Logf("%s", e[2])
			}
		})
	}
}

// A timeout leaves the state, whatever the code does meanwhile.
func TestJavaScriptTimeout(t *testing.T) {
	s := newContexts(t, "node")
	execute(t, s, "javascript", python("const x = 1"))
	for _, code := range []string{
		"while (true);",
		"await new Promise(() => {})",
		"await new Promise(r => setTimeout(r, 60000))",
		"setInterval(() => {}, 5)",
		"require('child_process').execSync('sleep 60')",
		"try { while (true); } finally { console.log('finally') }",
	} {
		req := python(code)
		req.Timeout = 200 * time.Millisecond
		got, r := execute(t, s, "javascript", req)
		if got.Status != server.StatusTimeout || got.Lost {
			t.Errorf("%s: %+v %+v", code, got, r)
		}
		if _, r := execute(t, s, "javascript", python("x")); r.started.Restarted || len(r.results) != 1 {
			t.Errorf("after %s: %+v", code, r)
		}
	}
}

func TestJavaScriptInterrupt(t *testing.T) {
	s := newContexts(t, "node")
	for _, code := range []string{"while (true);", "await new Promise(() => {})"} {
		r := told{on: func(string) error {
			_, err := s.Interrupt("javascript")
			return err
		}}
		got, err := s.Execute(t.Context(), Target{Language: "javascript"}, python("console.log(1)\n"+code), &r)
		if err != nil || !got.Interrupted || got.Lost || got.ExitCode != 130 || len(r.errs) != 1 || r.errs[0][0] != "KeyboardInterrupt" {
			t.Errorf("%s: %+v %+v %v", code, got, r.errs, err)
		}
	}
}

// An interrupt has an effect at every moment of a cell, and ends no interpreter: while
// it starts, while node exchanges its handlers of SIGINT, and when the code is over.
func TestJavaScriptInterruptAtAnyMoment(t *testing.T) {
	s := newContexts(t, "node")
	for i := range 300 {
		after := time.Duration(i%100) * 20 * time.Microsecond
		r := told{on: func(string) error {
			time.AfterFunc(after, func() { _, _ = s.Interrupt("javascript") })
			return nil
		}}
		code := []string{"console.log(1)\nawait new Promise(() => {})", "console.log(1); await 1", "console.log(1)"}[i%3]
		got, err := s.Execute(t.Context(), Target{Language: "javascript"}, python(code), &r)
		if err != nil || got.Lost || got.Status != server.StatusOK {
			t.Fatalf("%s, interrupted %v after it began to print: %+v %+v %v", code, after, got, r.errs, err)
		}
		if i%3 == 0 && got.ExitCode != 130 {
			t.Fatalf("%s ended by itself: %+v", code, got)
		}
	}
}

// Code that closes what the interpreter needs harms itself alone.
func TestJavaScriptWithoutLatch(t *testing.T) {
	s := newContexts(t, "node")
	if got, r := execute(t, s, "javascript", python("require('fs').closeSync(6)")); got.ExitCode != 0 {
		t.Errorf("%+v %+v", got, r)
	}
	if got, r := execute(t, s, "javascript", python("1 + 1")); got.ExitCode != 0 || len(r.results) != 1 {
		t.Errorf("%+v %+v", got, r)
	}
	req := python("await new Promise(() => {})")
	req.Timeout = 50 * time.Millisecond
	for range 2 {
		if got, _ := execute(t, s, "javascript", req); got.Status != server.StatusTimeout {
			t.Errorf("%+v", got)
		}
	}
}

func TestEndsOfJavaScript(t *testing.T) {
	s := newContexts(t, "node")
	for _, tt := range []struct {
		code string
		want server.RunResult
	}{
		{"console.log('last'); process.exit(4)", server.RunResult{Status: server.StatusOK, ExitCode: 4}},
		{"process.exit()", server.RunResult{Status: server.StatusOK}},
		{"process.kill(process.pid, 9); await new Promise(() => {})", server.RunResult{Status: server.StatusKilled, ExitCode: -1, Signal: 9}},
		{"require('fs').writeSync(4, 'x'.repeat(100)); await new Promise(() => {})", server.RunResult{Status: server.StatusKilled, ExitCode: -1, Signal: 9}},
	} {
		execute(t, s, "javascript", python("let x = 1"))
		got, _ := execute(t, s, "javascript", python(tt.code))
		lost := got.Lost
		got.Duration = 0
		if got.RunResult != tt.want || !lost {
			t.Errorf("%s: %+v", tt.code, got)
		}
		if _, r := execute(t, s, "javascript", python("typeof x")); !r.started.Restarted || r.results[0]["text/plain"] != "'undefined'" {
			t.Errorf("after %s: %+v", tt.code, r)
		}
	}
}

func TestJavaScriptStdinEnvAndFolder(t *testing.T) {
	s := newContexts(t, "node")
	req := python("console.log(require('fs').readFileSync(0, 'utf8'), process.env.A, process.cwd())")
	req.Stdin, req.Env, req.Cwd = []byte("in"), map[string]string{"A": "b"}, "/usr"
	if _, r := execute(t, s, "javascript", req); r.out[0] != "in b /usr\n" {
		t.Errorf("%+v", r)
	}
	if _, r := execute(t, s, "javascript", python("[process.env.A, process.cwd() == '/usr', require('fs').readFileSync(0, 'utf8')].join()")); r.results[0]["text/plain"] != "',false,'" {
		t.Errorf("%+v", r)
	}
	req = python("let all = ''; for await (const piece of process.stdin) all += piece; all")
	req.Stdin = []byte("a stream")
	if _, r := execute(t, s, "javascript", req); len(r.results) != 1 || r.results[0]["text/plain"] != "'a stream'" {
		t.Errorf("%+v", r)
	}
}

// The next owner of a copied Sandbox draws other numbers than the copy.
func TestJavaScriptReseed(t *testing.T) {
	s := newContexts(t, "node")
	const draw = "[Math.random(), Math.random(), crypto.randomUUID(), require('crypto').randomBytes(8).toString('hex'), crypto.getRandomValues(new Uint8Array(8)).join()].join(' ')"
	seen := map[string]bool{}
	for boot := range 3 {
		_, r := execute(t, s, "javascript", python(draw))
		if len(r.results) != 1 {
			t.Fatalf("%d: %+v", boot, r)
		}
		for _, number := range strings.Fields(r.results[0]["text/plain"]) {
			if seen[number] {
				t.Errorf("%s was drawn before", number)
			}
			seen[number] = true
		}
		s.byID("javascript").worker.owner.boot++
	}
	_, r := execute(t, s, "javascript", python("let n = 0; for (let i = 0; i < 1e5; i++) { const v = Math.random(); if (v < 0 || v >= 1) throw v; n += v }; Math.abs(n / 1e5 - 0.5) < 0.01"))
	if len(r.results) != 1 || r.results[0]["text/plain"] != "true" {
		t.Errorf("%+v", r)
	}
}

func TestJavaScriptReseedWhileItRuns(t *testing.T) {
	s := newContexts(t, "node")
	_, r := execute(t, s, "javascript", python(`const before = require("crypto").randomBytes;
process.kill(process.pid, "SIGURG");
while (require("crypto").randomBytes === before) await new Promise((go) => setTimeout(go, 1));
require("crypto").randomBytes(8).length`))
	if len(r.results) != 1 || r.results[0]["text/plain"] != "8" {
		t.Errorf("%+v", r)
	}
}

func TestTypeScript(t *testing.T) {
	s := newContexts(t, "node")
	out, ok := runHere(t, "node", "-p", "typeof require('module').stripTypeScriptTypes")
	if !ok {
		t.Fatal(out)
	}
	if strings.TrimSpace(out) != "function" {
		_, r := execute(t, s, "typescript", python("1"))
		if len(r.errs) != 1 || !strings.Contains(r.errs[0][1], "TypeScript needs Node.js 22.13 or newer") {
			t.Errorf("%+v", r.errs)
		}
		return
	}
	for _, tt := range []struct{ code, want, err string }{
		{"interface P { x: number }\nconst p: P = { x: 1 }\np.x as number", "<1 true>", ""},
		{"p", "<{ x: 1 } true>", ""},
		{"enum Color { Red, Green }\nColor.Green", "<1 true>", ""},
		{"class Q { constructor(private a: string) {} get() { return this.a } }\nnew Q('a').get()", "<'a' true>", ""},
		{"type T = string", "", ""},
		{"import type { Stats } from 'fs'; import { sep } from 'path'\nsep satisfies string", "<'/' true>", ""},
		{"let n: = 1", "", "SyntaxError"},
		{"const f = <T,>(v: T): T => v; throw new Error(f<string>('e'))", "", "Error: e"},
		{"const g: number = await Promise.resolve(3); g", "<3 true>", ""},
	} {
		_, r := execute(t, s, "typescript", python(tt.code))
		got := ""
		if len(r.errs) > 0 {
			got = r.errs[0][0] + ": " + r.errs[0][1]
		}
		if all := strings.Join(r.all, ""); all != tt.want || !strings.HasPrefix(got, tt.err) || (tt.err == "") != (got == "") {
			t.Errorf("%s: %q %+v", tt.code, all, r.errs)
		}
	}
}
