package contexts

import (
	_ "embed" // the interpreters' own side
	"encoding/json"
	"slices"
	"strings"
	"syscall"
)

var (
	//go:embed python.py
	pythonSource string
	//go:embed notebook.py
	pythonNotebook string
	//go:embed javascript.js
	javascriptWorker string
	//go:embed bash.sh
	bashWorker string
	//go:embed r.r
	rWorker string
	//go:embed Context.java
	javaWorker string
)

// language describes a language whose interpreters keep their state.
type language struct {
	name string
	// args start the interpreter with a program that reads the worker from
	// descriptor 3, as a first frame, and runs it. If worker is empty, the program
	// is the worker itself.
	args   []string
	worker string
	// aside says that requests are in a file on descriptor 6, and a line on
	// descriptor 3 announces each: for a program that cannot read frames.
	aside bool
	// asFile says that the worker is in a file on descriptor 6: for a program that
	// compiles it.
	asFile bool
	// latch says that descriptor 6 is a counter, which is above zero while SIGINT is
	// handled: for a program that would be ended by one at another moment.
	latch bool
	// forceInterrupt is a signal that interrupts even if SIGINT is ignored; 0: none.
	forceInterrupt syscall.Signal
	// every is the time between two interrupts, as a multiple of againAfter: V8 may
	// crash when one comes while it still unwinds from the one before.
	every int
	// lines says that it writes the parts of one line piece by piece.
	lines bool
}

// title is the name of a worker in a list of processes.
const title = "cloud-sandbox-context"

const pythonLoader = `import os
def r(n):
    d=b""
    while len(d)<n:
        p=os.read(3,n-len(d))
        if not p:os._exit(0)
        d+=p
    return d
exec(compile(r(int.from_bytes(r(4),"big"))[4:],"<context>","exec"),{"__builtins__":__builtins__,"__name__":"<context>"})`

const javascriptLoader = `const fs=require("fs");
const r=n=>{const b=Buffer.alloc(n);for(let i=0;i<n;){const k=fs.readSync(3,b,i,n-i);if(!k)process.exit(0);i+=k}return b};
const s=r(r(4).readUInt32BE()).subarray(4).toString();
require("vm").runInThisContext(s,{filename:"node:context"})(require,(s,o)=>import(s,o))`

// node starts V8 without threads of its own. They wake each other for each cell, and a
// short one took half as much processor time again. The code's own workers and the
// threads of libuv stay.
var node = []string{"node", "--single-threaded", "-e", javascriptLoader, title}

// rLoader is one line, as R reads -e. A connection in binary mode has no buffer of
// R's own, and "e" keeps children of R from inheriting it.
const rLoader = `local({requests<-file("/proc/self/fd/3","reb",raw=TRUE);n<-function()readBin(requests,"integer",1L,4L,endian="big");n();` +
	`eval(parse(text=rawToChar(readBin(requests,"raw",n())),keep.source=FALSE),list2env(list(requests=requests),parent=.BaseNamespaceEnv))})`

// javaArgs compile the worker and run it. The worker changes state that is private
// to the JVM: the environment, and generators of random numbers.
var javaArgs = []string{
	"java", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xshare:auto", "--add-modules=jdk.jshell,jdk.unsupported",
	"--add-opens=java.base/java.lang=ALL-UNNAMED", "--add-opens=java.base/java.util=ALL-UNNAMED",
	"--add-opens=java.base/java.util.concurrent=ALL-UNNAMED", "--source=11", "/proc/self/fd/6", title,
}

// pythonWorker is the worker. It holds the source of the notebook part as text,
// which it compiles only when needed.
var pythonWorker = pythonSource[:strings.Index(pythonSource, pythonStart)] + "NOTEBOOK = " + pythonLiteral(pythonNotebook) + "\n" +
	pythonSource[strings.Index(pythonSource, pythonStart):]

// pythonStart is the first statement of the worker that has an effect.
const pythonStart = "main = types.ModuleType"

// pythonLiteral returns text as a Python literal; JSON strings are valid Python
// strings.
func pythonLiteral(text string) string {
	b, _ := json.Marshal(text) // cannot fail for a string
	return string(b)
}

// languages in listing order.
var languages = []language{
	{name: "python", args: []string{"python3", "-u", "-c", pythonLoader, title}, worker: pythonWorker, forceInterrupt: 60, every: 1},
	{name: "javascript", args: node, worker: javascriptWorker, latch: true, every: 8},
	{name: "typescript", args: append(slices.Clip(node), "typescript"), worker: javascriptWorker, latch: true, every: 8},
	{name: "bash", args: []string{"bash", "-c", bashWorker, title}, aside: true, forceInterrupt: 60, every: 1},
	{name: "r", args: []string{"R", "--no-echo", "--no-restore", "--no-save", "-e", rLoader, "--args", title}, worker: rWorker, every: 1, lines: true},
	{name: "java", args: javaArgs, worker: javaWorker, asFile: true, every: 1},
}

func languageNamed(name string) (language, bool) {
	i := slices.IndexFunc(languages, func(l language) bool { return l.name == name })
	if i < 0 {
		return language{}, false
	}
	return languages[i], true
}
