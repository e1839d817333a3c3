package telemetry

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"testing"
)

func TestLoggerWritesJSONFromLevel(t *testing.T) {
	var out bytes.Buffer
	log := NewLogger(&out, slog.LevelWarn, false)
	log.Info("quiet")
	log.Warn("loud", KeySandbox, "i1")
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatalf("%v in %q", err, out.String())
	}
	if line["msg"] != "loud" || line["sandbox_id"] != "i1" {
		t.Errorf("line = %v", line)
	}
}

func TestBufferIsNoTerminal(t *testing.T) {
	if IsTerminal(&bytes.Buffer{}) {
		t.Error("a buffer is a terminal")
	}
}
