package rest_test

import (
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
	"github.com/cloud-sandbox/cloud-sandbox/tests/gatewaytest"
)

// BenchmarkExecute measures the gateway's own work for a request over a kept loopback
// connection: token, body, routing, log line and reply.
func BenchmarkExecute(b *testing.B) {
	f := newFixture(b, func(c *gateway.Config) { c.Log = slog.New(slog.NewJSONHandler(io.Discard, nil)) })
	id := f.Acquire()
	body := `{"sandbox_id":"` + id + `","code":"x","language":"python"}`
	for b.Loop() {
		req, _ := http.NewRequest("POST", f.URL+"/api/v1/execute", strings.NewReader(body))
		req.Header.Set("Authorization", "Bearer "+f.Token)
		resp, err := f.Client.Do(req)
		if err != nil || resp.StatusCode != 200 {
			b.Fatal(resp, err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}

func BenchmarkDownload(b *testing.B) {
	f := newFixture(b)
	id := f.Acquire()
	b.SetBytes(gatewaytest.HugeSize)
	for b.Loop() {
		req, _ := http.NewRequest("GET", f.URL+"/api/v1/files?path=/dev/huge&sandbox_id="+id, nil)
		req.Header.Set("Authorization", "Bearer "+f.Token)
		resp, err := f.Client.Do(req)
		if err != nil {
			b.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}
