package sandbox_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// advised are the functions that say when to send a request again, with why a repeat
// does nothing twice.
var advised = map[string]string{
	"quota.go: refusal":                                          "the transaction that would have added the sandbox is undone",
	"internal/template/builder/service.go: queue":                "the build was not taken",
	"internal/execution/execution.go: errPaused":                 "begun takes it back, unless nothing was sent",
	"internal/gateway/audit.go: errUnrecorded":                   "asked before the request is looked at",
	"errors.go: NotBegun":                                        "its callers have done nothing, or only read",
	"internal/gateway/policy.go: limit":                          "asked before the request is looked at",
	"internal/gateway/policy.go: recognize":                      "asked before the request is looked at",
	"internal/gateway/rest/sessions.go: ErrUnderWay":             "a repeat has the key of the first request, and waits for that",
	"internal/node/admission.go: refusal":                        "it never had its turn, and nothing was started",
	"internal/node/host.go: exhausted":                           "there is no room, and nothing was started",
	"internal/node/port.go: carrier":                             "nothing was read or written",
	"internal/session/volumes.go: checkHomes":                    "no node was asked to start the sandbox",
	"internal/session/volumes.go: movingVolume":                  "nothing was started or deleted",
	"internal/volume/disk/carry.go: errLeaving":                  "the volume was not opened",
	"internal/session/line.go: startInTurn":                      "its turn never came, and no node was asked",
	"internal/snapshot/replication/fetch.go: tellFetch":          "nothing was started without the saved state",
	"internal/snapshot/replication/arrival.go: giveUpArrival":    "a repeated deletion continues the first one",
	"internal/rpc/rpc.go: away":                                  "broken takes it back, unless the other end was not reached",
	"internal/rpc/failure.go: refused":                           "asked before the call begins",
	"internal/rpc/leader.go: errStandby":                         "asked before the call begins",
	"internal/scheduler/place.go: noNode":                        "no node was asked",
	"internal/scheduler/place.go: PlaceElsewhere":                "no node was asked",
	"internal/engine/gvisor/sentryhost/server/heap.go: noMemory": "asked before a save or load begins",
	"internal/execution/spool/memory.go: tooMuch":                "reads have no effect, and Begun takes it back from the rest",
	"internal/execution/spool/spool.go: Enter":                   "asked before the execution begins",
	"internal/template/sandboxbuild/service.go: tooMany":         "the build was not taken",
	"internal/template/fetch/fetch.go: fetch":                    "nothing was started without the image",

	// These pass on what another has said.
	"internal/template/builder/protocol.go: err": "passed on",
	"internal/gateway/e2b/e2b.go: noRoom":        "passed on",
	"internal/rpc/failure.go: failure":           "passed on",
	"internal/rpc/failure.go: errorOf":           "passed on",
	"internal/rpc/snapshots.go: fromForked":      "passed on",
	"internal/rpc/snapshots.go: toForked":        "passed on",
}

// Clients repeat what they are told to repeat, whether or not they sent an idempotency
// key. Whoever gives such advice has a line above.
func TestAdviceDoesNothingTwice(t *testing.T) {
	found := map[string]bool{}
	for path, p := range listPackages(t) {
		if within(path, "api/gen", "internal/cli", "tests") { // of clients
			continue
		}
		for _, name := range p.GoFiles {
			file := filepath.ToSlash(filepath.Join(path, name))
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range parsed.Decls {
				for _, name := range advising(d) {
					found[file+": "+name] = true
				}
			}
		}
	}
	for _, where := range slices.Sorted(maps.Keys(found)) {
		if advised[where] == "" {
			t.Errorf("%s sets RetryAfter: say in the table why a repeat does nothing twice, or leave it out (sandbox.Begun)", where)
		}
	}
	for where := range advised {
		if !found[where] {
			t.Errorf("%s gives no advice any more: take it out of the table", where)
		}
	}
}

// advising returns the names under which d sets a RetryAfter to other than zero.
func advising(d ast.Decl) []string {
	var names []string
	look := func(name string, in ast.Node) {
		ast.Inspect(in, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.KeyValueExpr:
				if key, ok := n.Key.(*ast.Ident); ok && key.Name == "RetryAfter" {
					names = append(names, name)
				}
			case *ast.AssignStmt:
				for i, to := range n.Lhs {
					s, ok := to.(*ast.SelectorExpr)
					if !ok || s.Sel.Name != "RetryAfter" {
						continue
					}
					if len(n.Rhs) == len(n.Lhs) {
						if zero, ok := n.Rhs[i].(*ast.BasicLit); ok && strings.Trim(zero.Value, "0") == "" {
							continue
						}
					}
					names = append(names, name)
				}
			}
			return true
		})
	}
	switch d := d.(type) {
	case *ast.FuncDecl:
		look(d.Name.Name, d)
	case *ast.GenDecl:
		for _, s := range d.Specs {
			if v, ok := s.(*ast.ValueSpec); ok {
				look(v.Names[0].Name, v)
			}
		}
	}
	return names
}
