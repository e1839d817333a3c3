package rpc

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	sandboxv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/sandbox/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// BenchmarkMessageOf measures the copy of an answer, for a common record.
func BenchmarkMessageOf(b *testing.B) {
	s := v1.Sandbox{
		ID: "i00000000000000000000", Name: "web", State: sandbox.Running, Template: "base", Engine: "gvisor",
		Shape: v1.Shape{CPUs: 1, MemoryMB: 512, DiskMB: 4096, Pids: 512}, Resources: v1.Limits{CPUs: 1, MemoryMB: 512, Pids: 512},
		Network: json.RawMessage(`"public"`), Metadata: map[string]string{"a": "b"}, CreatedAt: time.Now(), StartedAt: time.Now(),
		TimeoutSeconds: 600, Deadline: time.Now(), OnTimeout: "pause", AutoResume: true, Timeline: 1,
	}
	b.ReportAllocs()
	for b.Loop() {
		messageOf(&sandboxv1.GetResponse{}, s)
	}
}

// BenchmarkTake measures the copy of a request.
func BenchmarkTake(b *testing.B) {
	m := &sandboxv1.CreateRequest{
		Name: "web", Metadata: map[string]string{"a": "b"}, Env: map[string]string{"A": "b"}, Network: "public",
		TimeoutSeconds: new(600.0), Resources: &sandboxv1.Resources{MemoryMb: new(int32(512))},
	}
	b.ReportAllocs()
	for b.Loop() {
		var to v1.CreateRequest
		if err := take(&to, m); err != nil {
			b.Fatal(err)
		}
	}
}
