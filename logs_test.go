package sandbox_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// logCall is a line of the log, as the code writes it.
type logCall struct {
	at      string
	message string
	keys    []string // that are literals
}

// logCalls finds the calls of loggers in what is shipped.
func logCalls(t *testing.T) []logCall {
	t.Helper()
	var calls []logCall
	for _, tree := range []string{"internal", "cmd"} {
		err := filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					if found, ok := logCallOf(call); ok {
						found.at = files.Position(call.Pos()).String()
						calls = append(calls, found)
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return calls
}

var levels = []string{"Debug", "Info", "Warn", "Error"}

// logCallOf reads a call of a method of slog.Logger: one of its four levels, with or
// without a context, on what is named log or Log, or on what logger() returns.
func logCallOf(call *ast.CallExpr) (logCall, bool) {
	method, ok := call.Fun.(*ast.SelectorExpr)
	name, withContext := "", false
	if ok {
		name, withContext = strings.CutSuffix(method.Sel.Name, "Context")
	}
	if !ok || !slices.Contains(levels, name) || !strings.HasSuffix(strings.ToLower(lastName(method.X)), "log") && lastName(method.X) != "logger" {
		return logCall{}, false
	}
	args := call.Args
	if withContext {
		args = args[1:]
	}
	if len(args) == 0 {
		return logCall{}, false
	}
	var found logCall
	found.message, _ = literal(args[0])
	for i := 1; i < len(args); i += 2 {
		if key, ok := literal(args[i]); ok {
			found.keys = append(found.keys, key)
		}
	}
	return found, true
}

func lastName(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name
	case *ast.SelectorExpr:
		return x.Sel.Name
	case *ast.CallExpr:
		return lastName(x.Fun)
	}
	return ""
}

func literal(x ast.Expr) (string, bool) {
	l, ok := x.(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(l.Value)
	return text, err == nil
}

// dialect has the beginnings of sentences that name no step.
var dialect = regexp.MustCompile(`^(what|who|that|nobody|there is) `)

// A message leads to one line of the code, and the same thing has the same key.
func TestLogMessages(t *testing.T) {
	calls := logCalls(t)
	if len(calls) < 150 {
		t.Fatalf("only %d calls of loggers were found", len(calls))
	}
	shared := map[string]string{
		telemetry.KeyRequest: "KeyRequest", telemetry.KeyTenant: "KeyTenant", telemetry.KeySandbox: "KeySandbox", telemetry.KeyBoot: "KeyBoot",
		telemetry.KeyNode: "KeyNode", telemetry.KeyTemplate: "KeyTemplate", telemetry.KeySnapshot: "KeySnapshot", telemetry.KeyVolume: "KeyVolume",
		telemetry.KeyBuild: "KeyBuild", telemetry.KeyError: "KeyError", telemetry.KeyMethod: "KeyMethod",
		"err": "KeyError", "boot": "KeyBoot", "snapshot": "KeySnapshot", "volume": "KeyVolume", "sandbox": "KeySandbox",
	}
	first := map[string]string{}
	for _, c := range calls {
		if other := first[c.message]; c.message != "" && other != "" {
			t.Errorf("%s: %q is the message of %s, too", c.at, c.message, other)
		}
		first[c.message] = c.at
		if dialect.MatchString(c.message) {
			t.Errorf("%s: %q names no step: begin with what was done", c.at, c.message)
		}
		for _, key := range c.keys {
			if name := shared[key]; name != "" {
				t.Errorf("%s: the key %q is telemetry.%s", c.at, key, name)
			}
		}
	}
}
