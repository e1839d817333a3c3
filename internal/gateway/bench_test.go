package gateway_test

import (
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
)

// What the gateway itself costs, over a kept loopback connection: token, body,
// routing, log line, reply.
func BenchmarkExecute(b *testing.B) {
	f := newFixture(b, func(c *gateway.Config) { c.Log = slog.New(slog.NewJSONHandler(io.Discard, nil)) })
	id := f.acquire()
	body := `{"sandbox_id":"` + id + `","code":"x","language":"python"}`
	for b.Loop() {
		req, _ := http.NewRequest("POST", f.url+"/api/v1/execute", strings.NewReader(body))
		req.Header.Set("Authorization", "Bearer "+f.token)
		resp, err := f.client.Do(req)
		if err != nil || resp.StatusCode != 200 {
			b.Fatal(resp, err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}

func BenchmarkDownload(b *testing.B) {
	f := newFixture(b)
	id := f.acquire()
	b.SetBytes(hugeSize)
	for b.Loop() {
		req, _ := http.NewRequest("GET", f.url+"/api/v1/files?path=/dev/huge&sandbox_id="+id, nil)
		req.Header.Set("Authorization", "Bearer "+f.token)
		resp, err := f.client.Do(req)
		if err != nil {
			b.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}
