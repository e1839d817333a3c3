package files

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
)

// Whoever swaps a folder for a link while root works in it leads root nowhere.
func TestSymlinkRaces(t *testing.T) {
	r := newRig(t)
	outside, err := os.MkdirTemp("", "outside-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(outside) })
	secret := filepath.Join(outside, "f")
	if err := os.WriteFile(secret, []byte("secret text"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.tree(t, map[string]string{"d/sub/f": "inside text", "d/z": "1", "link": "->" + outside})
	stop := r.swap(t)
	defer stop()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "sub/new", Size: 4, Mode: 0o644})
	_, _ = w.Write([]byte("evil"))
	w.Close()
	d := filepath.Join(r.dir, "d")
	selected := &guestv1.FileSelection{Path: d, NoIgnore: true}
	ctx := t.Context()
	for i := range 60 {
		_, _ = r.Replace(ctx, connect.NewRequest(&guestv1.ReplaceRequest{User: "root", Files: selected, Pattern: "text", Replacement: "text"}))
		_, _ = r.Chmod(ctx, connect.NewRequest(&guestv1.ChmodRequest{User: "root", Path: d, Mode: 0o755, Recursive: true}))
		copied := filepath.Join(r.dir, fmt.Sprint("copy", i))
		_, _ = r.Copy(ctx, connect.NewRequest(&guestv1.CopyRequest{User: "root", Source: d, Destination: copied, Recursive: true}))
		if data, _ := os.ReadFile(filepath.Join(copied, "sub/f")); bytes.Contains(data, []byte("secret")) && !isLink(filepath.Join(copied, "sub")) {
			t.Fatalf("copied %q", data)
		}
		_, _ = r.Copy(ctx, connect.NewRequest(&guestv1.CopyRequest{User: "root", Source: filepath.Join(r.dir, "copied"), Destination: d, Recursive: true, Overwrite: true}))
		if found := r.find(ctx, selected); strings.Contains(found, "secret") {
			t.Fatalf("found %q", found)
		}
		r.unpack(ctx, d, archive.Bytes())
	}
	stop()
	info, err := os.Stat(secret)
	data, _ := os.ReadFile(secret)
	if err != nil || string(data) != "secret text" || info.Mode() != 0o600 {
		t.Errorf("the file outside is now %q, %v, %v", data, info, err)
	}
	if got := list(t, outside); got != "f" {
		t.Errorf("outside there is now %q", got)
	}
	if info, err := os.Stat(outside); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder outside is now %v, %v", info, err)
	}
}

func isLink(path string) bool {
	_, err := os.Readlink(path)
	return err == nil
}

// swap has d/sub be a folder and a link in turn, until stop.
func (r *rig) swap(t *testing.T) (stop func()) {
	t.Helper()
	var swapping sync.WaitGroup
	quit := make(chan struct{})
	sub, link := filepath.Join(r.dir, "d/sub"), filepath.Join(r.dir, "link")
	swapping.Go(func() {
		for {
			select {
			case <-quit:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, sub, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
			}
		}
	})
	return sync.OnceFunc(func() { close(quit); swapping.Wait() })
}

// find is all the text that a search as root finds.
func (r *rig) find(ctx context.Context, files *guestv1.FileSelection) string {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	stream, err := r.Search(ctx, connect.NewRequest(&guestv1.SearchRequest{User: "root", Files: files, Pattern: "text", MaxResults: 100}))
	if err != nil {
		return ""
	}
	defer stream.Close()
	var all []string
	for stream.Receive() {
		all = append(all, string(stream.Msg().GetMatch().GetText()))
	}
	return strings.Join(all, "|")
}

// unpack unpacks an archive as root, as far as that goes.
func (r *rig) unpack(ctx context.Context, folder string, archive []byte) {
	stream := r.Extract(ctx)
	_ = stream.Send(&guestv1.ExtractRequest{Part: &guestv1.ExtractRequest_Start{Start: &guestv1.ExtractStart{User: "root", Path: folder}}})
	_ = stream.Send(&guestv1.ExtractRequest{Part: &guestv1.ExtractRequest_Data{Data: archive}})
	_, _ = stream.CloseAndReceive()
}
