package rpc_test

import (
	"io"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
)

// BenchmarkCalls measures the gateway's own work for calls of Connect, without a
// connection.
func BenchmarkCalls(b *testing.B) {
	f := newFixture(b, func(c *gateway.Config) { c.Log = slog.New(slog.NewJSONHandler(io.Discard, nil)) })
	id := f.WithProcesses()
	f.StartProcess(id, `"command":"true","name":"p"`)
	for range 9 {
		f.Do("POST", "/api/v1/sessions", `{"metadata":{"a":"b"},"env":{"A":"b"}}`)
	}
	f.Do("POST", "/api/v1/sessions", `{"name":"web"}`)
	for _, tt := range []struct{ name, path, body string }{
		{"Get", "sandbox.v1.SandboxService/Get", `{"sandbox_id":"` + id + `"}`},
		{"List", "sandbox.v1.SandboxService/List", `{"limit":10}`},
		{"Create", "sandbox.v1.SandboxService/Create", `{"name":"web","if_exists":"return","metadata":{"a":"b"},"env":{"A":"b"},"network":"public","timeout_seconds":600,"resources":{"memory_mb":512}}`},
		{"Stat", "file.v1.FileService/Stat", `{"sandbox_id":"` + id + `","path":"/workspace"}`},
		{"GetProcess", "process.v1.ProcessService/Get", `{"sandbox_id":"` + id + `","process_id":"p"}`},
		{"Input", "process.v1.ProcessService/Input", `{"sandbox_id":"` + id + `","process_id":"none","data":"` + strings.Repeat("YWFh", 16<<10) + `"}`},
	} {
		b.Run(tt.name, func(b *testing.B) {
			for b.Loop() {
				r := httptest.NewRequest("POST", "/cloudsandbox."+tt.path, strings.NewReader(tt.body))
				r.Header.Set("Authorization", "Bearer "+f.Token)
				r.Header.Set("Content-Type", "application/json")
				w := httptest.NewRecorder()
				f.Server.ServeHTTP(w, r)
				if w.Code != 200 && tt.name != "Input" { // which refuses: there is no such process
					b.Fatal(w.Code, w.Body)
				}
			}
		})
	}
}
