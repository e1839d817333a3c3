package sandbox_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
)

func ptr[T any](v T) *T { return &v }

func TestChangeApply(t *testing.T) {
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	before := sandbox.Sandbox{
		Name: "web", Template: "base", Shape: sandbox.DefaultShape(), Limits: sandbox.DefaultShape().Limits(),
		Network: sandbox.NetworkPublic, Metadata: map[string]string{"a": "1", "b": "2"}, Env: map[string]string{"A": "1"},
		Timeout: time.Minute, Deadline: at, Revision: 7,
	}
	for _, tt := range []struct {
		name   string
		change sandbox.Change
		want   func(*sandbox.Sandbox)
	}{
		{"nothing", sandbox.Change{}, func(*sandbox.Sandbox) {}},
		{"what it has already", sandbox.Change{Template: ptr("base"), DiskBytes: ptr(before.Shape.DiskBytes), Network: ptr(sandbox.NetworkPublic)}, func(*sandbox.Sandbox) {}},
		{"its record", sandbox.Change{
			Name: ptr(""), Timeout: ptr(time.Hour), IdleTimeout: ptr(time.Minute), CheckpointEvery: ptr(time.Minute),
			Metadata: map[string]*string{"a": nil, "b": ptr("3"), "c": ptr("4"), "d": nil},
		}, func(s *sandbox.Sandbox) {
			s.Name, s.Timeout, s.Deadline, s.IdleTimeout = "", time.Hour, at.Add(time.Hour), time.Minute
			s.CheckpointEvery = time.Minute
			s.Metadata = map[string]string{"b": "3", "c": "4"}
		}},
		{"what its boot is told", sandbox.Change{
			Network: ptr(sandbox.NetworkNone), CPUs: ptr(2.0), MemoryBytes: ptr(int64(128 << 20)), Pids: ptr(int64(1000)),
			User: ptr("root"), Cwd: ptr("/"), Env: map[string]*string{"A": nil, "B": ptr("")},
		}, func(s *sandbox.Sandbox) {
			s.Network, s.Limits = sandbox.NetworkNone, sandbox.Limits{CPUs: 2, MemoryBytes: 128 << 20, Pids: 1000}
			s.User, s.Cwd, s.Env, s.Revision = "root", "/", map[string]string{"B": ""}, 8
		}},
	} {
		want := before
		tt.want(&want)
		got, err := tt.change.Apply(before, at)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v, want %+v", tt.name, got, err, want)
		}
	}
	if len(before.Metadata) != 2 || before.Env["A"] != "1" {
		t.Errorf("the record before changed: %+v", before)
	}
}

func TestChangeRefused(t *testing.T) {
	before := sandbox.Sandbox{
		Template: "base", Shape: sandbox.DefaultShape(), Limits: sandbox.DefaultShape().Limits(), Network: sandbox.NetworkPublic,
	}
	for _, tt := range []struct {
		says   string
		change sandbox.Change
		want   sandbox.Code
	}{
		{"template", sandbox.Change{Template: ptr("other")}, sandbox.Conflict},
		{"disk_mb", sandbox.Change{DiskBytes: ptr(int64(1))}, sandbox.Conflict},
		{"memory_mb", sandbox.Change{MemoryBytes: ptr(before.Shape.MemoryBytes + 1)}, sandbox.Conflict},
		{"memory_mb", sandbox.Change{MemoryBytes: ptr(int64(0))}, sandbox.Invalid},
		{"cpus", sandbox.Change{CPUs: ptr(2.5)}, sandbox.Conflict},
		{"cpus", sandbox.Change{CPUs: ptr(-1.0)}, sandbox.Invalid},
		{"pids", sandbox.Change{Pids: ptr(int64(1))}, sandbox.Invalid},
		{"network", sandbox.Change{Network: ptr(sandbox.NetworkPolicy("all"))}, sandbox.Invalid},
		{"name", sandbox.Change{Name: ptr("A")}, sandbox.Invalid},
		{"name", sandbox.Change{Name: ptr(sandbox.NewSandboxID())}, sandbox.Invalid},
		{"timeout_seconds", sandbox.Change{Timeout: ptr(time.Duration(0))}, sandbox.Invalid},
		{"timeout_seconds", sandbox.Change{Timeout: ptr(sandbox.MaxTimeout + 1)}, sandbox.Invalid},
		{"idle_timeout_seconds", sandbox.Change{IdleTimeout: ptr(time.Millisecond)}, sandbox.Invalid},
		{"idle_timeout_seconds", sandbox.Change{IdleTimeout: ptr(-time.Second)}, sandbox.Invalid},
		{"checkpoint_every_seconds", sandbox.Change{CheckpointEvery: ptr(sandbox.MinCheckpointEvery - 1)}, sandbox.Invalid},
		{"checkpoint_every_seconds", sandbox.Change{CheckpointEvery: ptr(sandbox.MaxCheckpointEvery + 1)}, sandbox.Invalid},
		{"user", sandbox.Change{User: ptr("a\x00")}, sandbox.Invalid},
		{"cwd", sandbox.Change{Cwd: ptr(strings.Repeat("/a", 5000))}, sandbox.Invalid},
		{"environment", sandbox.Change{Env: map[string]*string{"1": ptr("")}}, sandbox.Invalid},
		{"metadata", sandbox.Change{Metadata: map[string]*string{"": ptr("")}}, sandbox.Invalid},
	} {
		got, err := tt.change.Apply(before, time.Now())
		if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, want %s", tt.says, err, tt.want)
		}
		if !reflect.DeepEqual(got, before) {
			t.Errorf("%s: a refused change returned %+v", tt.says, got)
		}
	}
}

func TestShapeCovers(t *testing.T) {
	pool := sandbox.DefaultShape()
	for _, tt := range []struct {
		name   string
		change func(*sandbox.Shape)
		want   bool
	}{
		{"the same", func(*sandbox.Shape) {}, true},
		{"less memory", func(s *sandbox.Shape) { s.MemoryBytes /= 2 }, true},
		{"more memory", func(s *sandbox.Shape) { s.MemoryBytes++ }, false},
		{"another share of as many cpus", func(s *sandbox.Shape) { s.CPUs = 2 }, true},
		{"more cpus", func(s *sandbox.Shape) { s.CPUs = 2.1 }, false},
		{"another disk", func(s *sandbox.Shape) { s.DiskBytes-- }, false},
		{"more pids", func(s *sandbox.Shape) { s.Pids *= 2 }, true},
	} {
		asked := pool
		tt.change(&asked)
		if got := pool.Covers(asked); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
		if err := pool.CheckLimits(asked.Limits()); tt.want && err != nil {
			t.Errorf("%s: covered, and then %v", tt.name, err)
		}
	}
}

func TestOutputTail(t *testing.T) {
	var kept []byte
	for _, piece := range []string{"begin ", strings.Repeat("é", sandbox.MaxOutputTail), "", "end"} {
		kept = sandbox.KeepTail(kept, []byte(piece))
		if len(kept) > sandbox.MaxOutputTail {
			t.Fatalf("%d bytes are kept", len(kept))
		}
	}
	text := sandbox.TailText(kept)
	if !strings.HasSuffix(text, "ééend") || strings.ContainsRune(text, utf8.RuneError) || len(text) < sandbox.MaxOutputTail-1 {
		t.Errorf("the tail has %d bytes: %.20q", len(text), text)
	}
	for _, hostile := range []string{"", "\x80", "\x80\x80\x80\x80\x80", strings.Repeat("a\xff", sandbox.MaxOutputTail/2), strings.Repeat("a\x00", sandbox.MaxOutputTail/2)} {
		text := sandbox.TailText([]byte(hostile))
		if !utf8.ValidString(text) || len(text) > sandbox.MaxOutputTail || strings.ContainsRune(text, 0) {
			t.Errorf("%.10q gives %d bytes, valid: %v", hostile, len(text), utf8.ValidString(text))
		}
	}
}
