package files

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

// changes asks until what is told contains all that is wanted.
func (r *rig) changes(t *testing.T, since string, want ...string) (told []string, cursor string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		got, err := r.Changes(t.Context(), connect.NewRequest(&guestv1.ChangesRequest{Path: r.dir, Recursive: true, Since: since}))
		if err != nil || got.Msg.Position.Reset_ {
			t.Fatalf("since %q: %v, %v", since, got, err)
		}
		for _, c := range got.Msg.Changes {
			told = append(told, r.word(c))
		}
		since = got.Msg.Position.Cursor
		if !slices.ContainsFunc(want, func(w string) bool { return !slices.Contains(told, w) }) {
			return told, since
		}
		if time.Now().After(end) {
			t.Fatalf("told %q, want %q", told, want)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (r *rig) word(c *guestv1.FileChange) string {
	kind := strings.ToLower(strings.TrimPrefix(c.Type.String(), "FILE_CHANGE_TYPE_"))
	return kind + " " + strings.TrimPrefix(c.Path, r.dir+"/")
}

func TestChanges(t *testing.T) {
	r := newRig(t)
	r.tree(t, map[string]string{"old/f": "1"})
	_, cursor := r.changes(t, "")
	r.tree(t, map[string]string{"new/deep/g": "1", "old/f": "2"})
	r.tree(t, map[string]string{"last": ""}) // a write may be told more than once before it
	_, next := r.changes(t, cursor, "created new", "created new/deep", "created new/deep/g", "modified old/f", "created last")
	if err := os.Rename(filepath.Join(r.dir, "old/f"), filepath.Join(r.dir, "new/deep/h")); err != nil {
		t.Fatal(err)
	}
	os.Remove(filepath.Join(r.dir, "new/deep/g"))
	os.Chmod(filepath.Join(r.dir, "new/deep/h"), 0o600)
	told, last := r.changes(t, next, "renamed old/f", "created new/deep/h", "removed new/deep/g", "attributes new/deep/h")
	if slices.Contains(told, "modified old/f") {
		t.Errorf("told again: %q", told)
	}
	// Any earlier cursor is as good as before.
	if all, _ := r.changes(t, cursor, "created new", "removed new/deep/g"); len(all) < 8 {
		t.Errorf("only %q", all)
	}
	for _, since := range []string{"nonsense", "aaaaaaaaaaaaa-1", strings.Split(last, "-")[0] + "-99999", last + "x"} {
		got, err := r.Changes(t.Context(), connect.NewRequest(&guestv1.ChangesRequest{Path: r.dir, Recursive: true, Since: since}))
		if err != nil || !got.Msg.Position.Reset_ || got.Msg.Position.Cursor != last {
			t.Errorf("%q: %v, %v", since, got, err)
		}
	}
	for path, want := range map[string]connect.Code{
		"none": connect.CodeNotFound, "new/deep/h": connect.CodeInvalidArgument, "locked": connect.CodePermissionDenied,
	} {
		os.Mkdir(filepath.Join(r.dir, "locked"), 0o700)
		_, err := r.Changes(t.Context(), connect.NewRequest(&guestv1.ChangesRequest{Path: filepath.Join(r.dir, path), Recursive: true}))
		if connect.CodeOf(err) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// Changes in a renamed folder are reported with its new name.
func TestChangesAfterRename(t *testing.T) {
	r := newRig(t)
	r.tree(t, map[string]string{"a/b/c/f": "1", "other/": ""})
	_, cursor := r.changes(t, "")
	if err := os.Rename(filepath.Join(r.dir, "a"), filepath.Join(r.dir, "other/z")); err != nil {
		t.Fatal(err)
	}
	_, cursor = r.changes(t, cursor, "renamed a", "created other/z", "created other/z/b/c/f")
	r.tree(t, map[string]string{"other/z/b/c/f": "2", "other/z/b/g": "1"})
	told, cursor := r.changes(t, cursor, "modified other/z/b/c/f", "created other/z/b/g")
	for _, what := range told {
		if strings.Contains(what, " a/") {
			t.Errorf("told of an old name: %q", told)
		}
	}
	os.RemoveAll(filepath.Join(r.dir, "other"))
	r.tree(t, map[string]string{"other/z/b/again": "1"})
	r.changes(t, cursor, "removed other", "created other/z/b/again")
}

func TestWatch(t *testing.T) {
	r := newRig(t)
	r.tree(t, map[string]string{"d/": "", "d/sub/": ""})
	ctx, leave := context.WithTimeout(t.Context(), time.Minute)
	defer leave()
	req := &guestv1.WatchRequest{Path: filepath.Join(r.dir, "d")}
	stream, err := r.Watch(ctx, connect.NewRequest(req))
	if err != nil {
		t.Fatal(err)
	}
	if !stream.Receive() || stream.Msg().GetPosition() == nil {
		t.Fatalf("first: %v, %v", stream.Msg(), stream.Err())
	}
	cursor := stream.Msg().GetPosition().Cursor
	r.tree(t, map[string]string{"d/sub/unseen": "", "d/a": "x"})
	if !stream.Receive() || r.word(stream.Msg().GetChange()) != "created d/a" {
		t.Fatalf("then: %v, %v", stream.Msg(), stream.Err())
	}
	stream.Close()
	// A client that returns with a cursor misses nothing.
	r.tree(t, map[string]string{"d/b": ""})
	req.Since = cursor
	again, err := r.Watch(ctx, connect.NewRequest(req))
	if err != nil || !again.Receive() || again.Msg().GetPosition().Reset_ {
		t.Fatalf("again: %v", err)
	}
	var told []string
	for !slices.Contains(told, "created d/b") && again.Receive() {
		told = append(told, r.word(again.Msg().GetChange()))
	}
	if told[0] != "created d/a" {
		t.Errorf("told %q", told)
	}
	os.RemoveAll(filepath.Join(r.dir, "d"))
	for again.Receive() {
	}
	if connect.CodeOf(again.Err()) != connect.CodeNotFound {
		t.Errorf("the end: %v", again.Err())
	}
	// A folder of the same name is another one.
	r.tree(t, map[string]string{"d/": ""})
	got, err := r.Changes(t.Context(), connect.NewRequest(&guestv1.ChangesRequest{Path: req.Path, Since: cursor}))
	if err != nil || !got.Msg.Position.Reset_ {
		t.Errorf("afterwards: %v, %v", got, err)
	}
}

// An unused journal ends, and its size is bounded.
func TestJournalsEnd(t *testing.T) {
	dir := t.TempDir()
	js := &journals{idle: time.Millisecond}
	key := journalKey{root: dir}
	j, err := js.open(key, server.User{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range maxChanges + 10 {
		j.append(guestv1.FileChangeType_FILE_CHANGE_TYPE_CREATED, fmt.Sprint(i))
	}
	if n := j.since(j.name+"-0", maxChanges); !n.position.Reset_ || len(n.changes) != 0 {
		t.Errorf("what was dropped: %v", n)
	}
	if n := j.since(fmt.Sprintf("%s-%d", j.name, maxChanges), maxChanges); n.position.Reset_ || len(n.changes) != 10 {
		t.Errorf("what is there: %v", n)
	}
	long := strings.Repeat("x", 4000)
	for i := range 2 * maxChangeBytes / len(long) {
		j.append(guestv1.FileChangeType_FILE_CHANGE_TYPE_CREATED, fmt.Sprint(long, i))
	}
	if len(j.changes) < maxChangeBytes/len(long)/2 || j.bytes > maxChangeBytes {
		t.Errorf("%d changes of %d bytes", len(j.changes), j.bytes)
	}
	name := j.name
	j.lose()
	if n := j.since(name+"-5", maxChanges); !n.position.Reset_ {
		t.Errorf("after a loss: %v", n)
	}
	js.release(j)
	select {
	case <-j.ended:
	case <-time.After(time.Minute):
		t.Fatal("it goes on")
	}
	js.mu.Lock()
	defer js.mu.Unlock()
	if len(js.byID) != 0 {
		t.Errorf("%d are left", len(js.byID))
	}
}

// For any cursor, a client gets the changes after it, or a reset.
func FuzzCursor(f *testing.F) {
	j := &journal{name: "abc", more: make(chan struct{})}
	for i := range 5 {
		j.append(guestv1.FileChangeType_FILE_CHANGE_TYPE_CREATED, fmt.Sprint(i))
	}
	j.forget(2)
	for _, s := range []string{"", "abc-0", "abc-2", "abc-5", "abc-6", "abc--1", "abc-9223372036854775808", "x-3", "abc", "-"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, cursor string) {
		n := j.since(cursor, maxChanges)
		known := map[string]int{"abc-2": 3, "abc-3": 2, "abc-4": 1, "abc-5": 0}
		if len(n.changes) > 3 || n.position.Cursor != "abc-5" {
			t.Fatalf("%q gives %v", cursor, n)
		}
		if n.position.Reset_ && len(n.changes) > 0 {
			t.Fatalf("%q gives %v", cursor, n)
		}
		if want, ok := known[cursor]; ok && (len(n.changes) != want || n.position.Reset_) {
			t.Fatalf("%q gives %v", cursor, n)
		}
	})
}

// Matching ends for any glob and name.
func FuzzGlob(f *testing.F) {
	for _, s := range []string{"*.go", "/a/**/b", "!x", "{a,b}", "[a-", "**/**/**", "a?"} {
		f.Add(s, "a/b/c.go")
	}
	f.Fuzz(func(t *testing.T, glob, name string) {
		if len(glob) > 256 || len(name) > 256 {
			return
		}
		s, err := newSelection(&guestv1.FileSelection{Path: "/a", Globs: []string{glob}})
		if err != nil {
			if connect.CodeOf(err) != connect.CodeInvalidArgument {
				t.Fatal(err)
			}
			return
		}
		_ = matchAny(append(s.wanted, s.unwanted...), name)
	})
}
