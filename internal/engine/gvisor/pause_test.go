package gvisor

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/enginetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/client"
)

// guestOf returns a client of the Guest of a Boot.
func guestOf(e sandbox.Engine, id string) *client.Client {
	return client.New(func(ctx context.Context, port uint16) (net.Conn, error) { return e.Dial(ctx, id, port) })
}

// bound returns a binding for engine tests, which have no owners.
func bound(shape sandbox.Shape) sandbox.Binding {
	return sandbox.Binding{SandboxID: "iaaaaaaaaaaaaaaaaaaaa", BootNumber: 1, Network: sandbox.NetworkNone, Limits: shape.Limits(), Restored: true}
}

// sh runs a shell command in a Boot to its end, and returns what it printed.
func sh(t *testing.T, e sandbox.Engine, id, command string) string {
	t.Helper()
	g := guestOf(e, id)
	defer g.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out, errs strings.Builder
	end, err := g.Run(ctx, execution.RunRequest{Args: []string{"/bin/bash", "-c", command}, Cwd: "/"}, func(ev execution.RunEvent) error {
		out.Write(ev.Stdout)
		errs.Write(ev.Stderr)
		return nil
	})
	if err != nil || end.ExitCode != 0 {
		t.Errorf("%s = %+v, %v: %s%s", command, end, err, out.String(), errs.String())
	}
	return strings.TrimSpace(out.String())
}

// python runs code in a Boot's Python context, which keeps its state.
func python(t *testing.T, e sandbox.Engine, id, code string) string {
	t.Helper()
	return cell(t, e, id, "python", code)
}

func cell(t *testing.T, e sandbox.Engine, id, language, code string) string {
	t.Helper()
	g := guestOf(e, id)
	defer g.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out strings.Builder
	_, err := g.Execute(ctx, execution.CellRequest{Language: language, Code: code, Timeout: 50 * time.Second}, func(ev execution.RunEvent) error {
		out.Write(ev.Stdout)
		out.Write(ev.Stderr)
		if ev.Failure != nil {
			t.Errorf("%s: %s", code, ev.Failure.Traceback)
		}
		if ev.Value != nil {
			out.WriteString(ev.Value.Data["text/plain"])
		}
		return nil
	})
	if err != nil {
		t.Errorf("%s: %v", code, err)
	}
	return strings.TrimSpace(out.String())
}

// bind binds a Boot, so that its Guest runs programs.
func bind(t *testing.T, e sandbox.Engine, id string) {
	t.Helper()
	g := guestOf(e, id)
	defer g.Close()
	binding := bound(sandbox.DefaultShape())
	binding.BootNumber = boots.Add(1)
	if _, err := g.Bind(t.Context(), binding); err != nil {
		t.Errorf("Bind: %v", err)
	}
}

// boots counts the bound Boots, so that each gets a number of its own.
var boots atomic.Int64

// pause gives the suite access to Boots. Memory is a variable in a Python context.
func pause(dir string) *enginetest.Pause {
	return &enginetest.Pause{
		Ask: func(ctx context.Context, e sandbox.Engine, id string) error {
			g := guestOf(e, id)
			defer g.Close()
			_, _, err := g.Health(ctx)
			return err
		},
		Remember: func(t *testing.T, e sandbox.Engine, id, value string) {
			bind(t, e, id)
			python(t, e, id, fmt.Sprintf("value = %q", value))
		},
		Recall: func(t *testing.T, e sandbox.Engine, id string) string {
			return python(t, e, id, "print(value)")
		},
		WriteFile: func(t *testing.T, e sandbox.Engine, id, value string) {
			bind(t, e, id)
			sh(t, e, id, "echo "+base64.StdEncoding.EncodeToString([]byte(value))+" | base64 -d >/workspace/value")
		},
		ReadFile: func(t *testing.T, e sandbox.Engine, id string) string {
			bind(t, e, id)
			return sh(t, e, id, "cat /workspace/value")
		},
		Need: func(t *testing.T, _ sandbox.Engine, name, feature string) { need(t, dir, name, feature) },
		Damage: func(t *testing.T, _ sandbox.Engine, name string) {
			files, err := filepath.Glob(filepath.Join(dir, "saved", name, "*.*"))
			if err != nil || len(files) < 2 {
				t.Fatalf("%s consists of %v, %v", name, files, err)
			}
			for _, f := range files {
				if filepath.Base(f) != "manifest.json" {
					flip(t, f)
				}
			}
		},
	}
}

// need makes a saved state need one more CPU feature, in its manifest on the disk.
func need(t *testing.T, dir, name, feature string) {
	t.Helper()
	path := filepath.Join(dir, "saved", name, sentryhost.ManifestName)
	var m sentryhost.Manifest
	raw, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(raw, &m)
	}
	if err != nil {
		t.Fatal(err)
	}
	m.CPU = sandbox.NewCPUFeatures(append(m.CPU.Names(), feature)...)
	if raw, err = json.Marshal(m); err == nil {
		err = os.WriteFile(path, raw, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// flip changes one bit in the middle of a file.
func flip(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1)
	at := info.Size() / 2
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}

// A later build with the same gVisor starts a state of an earlier build, with the Guest in
// the saved memory. If the parts of the earlier build are missing, the error names that
// build.
func TestAnotherBuildGoesOn(t *testing.T) {
	s := newStage(t)
	s.stop()
	lib := filepath.Join(s.dir, "lib")
	stop := s.startHost(t, partsOf(t, lib, "old"), "old")
	e := s.open(t)
	spec := sandbox.BootSpec{Image: s.image, Shape: sandbox.DefaultShape()}
	origin, name := sandbox.NewBootID(), sandbox.NewSnapshotID()
	if err := e.Start(t.Context(), origin, spec); err != nil {
		t.Fatal(err)
	}
	bind(t, e, origin)
	python(t, e, origin, "value = 41")
	if _, err := e.Save(t.Context(), origin, name, true); err != nil {
		t.Fatal(err)
	}
	endAll(t, e)
	stop()

	next := partsOf(t, lib, "next")
	guest, err := os.OpenFile(filepath.Join(next, "guest.erofs"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := guest.WriteAt(make([]byte, 1<<20), 1<<20); err != nil { // a Guest that does not run
		t.Fatal(err)
	}
	guest.Close()
	s.startHost(t, next, "next")
	e = s.open(t)
	defer endAll(t, e)
	spec.From = name
	restored := sandbox.NewBootID()
	if err := e.Start(t.Context(), restored, spec); err != nil {
		t.Fatalf("Start of what another build saved: %v", err)
	}
	bind(t, e, restored)
	if err := e.Thaw(t.Context(), restored); err != nil {
		t.Fatal(err)
	}
	if got := python(t, e, restored, "print(value + 1)"); got != "42" {
		t.Errorf("it goes on with %q", got)
	}
	again := sandbox.NewSnapshotID()
	if saved, err := e.Save(t.Context(), restored, again, true); err != nil || saved.Build != "old" {
		t.Errorf("saved again as %+v, %v", saved, err)
	}

	if err := os.RemoveAll(filepath.Join(lib, "old")); err != nil {
		t.Fatal(err)
	}
	err = e.Start(t.Context(), sandbox.NewBootID(), spec)
	if !errors.Is(err, sandbox.Conflict) || !strings.Contains(err.Error(), "build old") {
		t.Errorf("Start without the guest of then = %v", err)
	}
}

// partsOf copies the parts to the folder of a build.
func partsOf(t *testing.T, lib, build string) string {
	t.Helper()
	dir := filepath.Join(lib, build)
	from := filepath.Join(filepath.Dir(os.Getenv("CLOUD_SANDBOX_E2E")), "stage")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"gvisor_sentry", "link", "guest.erofs"} {
		if out, err := exec.Command("cp", filepath.Join(from, part), dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	return dir
}
