package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
)

// A line carries the request that its context is of, once, and beside what the
// logger says of itself.
func TestLinesOfRequests(t *testing.T) {
	var out bytes.Buffer
	log := NewLogger(&out, slog.LevelInfo, false).With(KeyRole, "node")
	ctx := WithRequest(t.Context(), "r1")
	for _, tt := range []struct {
		say  func()
		want string
	}{
		{func() { log.InfoContext(ctx, "x", KeySandbox, "i1") }, "r1"},
		{func() { log.InfoContext(ctx, "x", KeyRequest, "r2") }, "r2"},
		{func() { log.InfoContext(context.WithoutCancel(ctx), "x") }, "r1"},
		{func() { log.InfoContext(t.Context(), "x") }, ""},
		{func() { log.Info("x") }, ""},
	} {
		out.Reset()
		tt.say()
		var line map[string]any
		if err := json.Unmarshal(out.Bytes(), &line); err != nil {
			t.Fatalf("%v in %s", err, out.String())
		}
		got, _ := line[KeyRequest].(string)
		if got != tt.want || line[KeyRole] != "node" || strings.Count(out.String(), KeyRequest) > 1 {
			t.Errorf("%s, want %q", out.String(), tt.want)
		}
	}
}

func TestValidRequest(t *testing.T) {
	for id, want := range map[string]bool{
		"a": true, "A-b_c.9": true, strings.Repeat("x", 64): true,
		"": false, strings.Repeat("x", 65): false, "a b": false, "a\n": false, "ä": false, `"`: false,
	} {
		if ValidRequest(id) != want {
			t.Errorf("%q: %v", id, !want)
		}
	}
}
