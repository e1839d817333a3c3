// Package guesttest is the contract test suite of the ports of execution.Guest.
package guesttest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// World is a bound Guest, and an empty folder in it, which is the default working
// directory.
type World struct {
	execution.Guest
	Dir string
}

// world is a World with helpers for the cases.
type world struct {
	World
	t *testing.T
}

// Run checks the contract. open is called once per case and registers its own cleanup.
// Cases run one at a time, because a Guest treats all processes of its machine as its
// own.
func Run(t *testing.T, open func(t *testing.T) World) {
	for name, check := range map[string]func(*world){
		"a file":                        oneFile,
		"a file of every size":          sizes,
		"names of files":                fileNames,
		"reads with conditions":         conditions,
		"reads with times":              times,
		"folders":                       folders,
		"files that are refused":        refusedFiles,
		"copy and chmod":                copyAndChmod,
		"search and replace":            searchAndReplace,
		"archive and extract":           archiveAndExtract,
		"changes":                       changes,
		"watch":                         watch,
		"run":                           run,
		"programs that fail":            failures,
		"a program ends with its call":  endWithCall,
		"a process":                     oneProcess,
		"a process with a key":          keyed,
		"the output of a process":       output,
		"input and terminal":            terminal,
		"waiting for output":            waiting,
		"signals":                       signals,
		"processes that are not there":  absentProcesses,
		"contexts that are not there":   absentContexts,
		"what goes on inside":           inspect,
		"a connection ahead of a call":  func(w *world) { codetest.OK(w.t, "Warm", w.Warm(w.t.Context())) },
		"calls whose context has ended": endedContext,
	} {
		t.Run(name, func(t *testing.T) {
			check(&world{open(t), t})
		})
	}
}

func (w *world) at(name string) string { return path.Join(w.Dir, name) }

func (w *world) write(name, content string) execution.Entry {
	w.t.Helper()
	e, err := w.WriteFile(w.t.Context(), w.at(name), strings.NewReader(content), int64(len(content)))
	codetest.OK(w.t, "WriteFile", err)
	return e
}

// read returns the body and the outcome of a read.
func (w *world) read(name string, opts execution.ReadOptions) (string, execution.FileBody) {
	w.t.Helper()
	f, err := w.ReadFile(w.t.Context(), w.at(name), opts)
	codetest.OK(w.t, "ReadFile", err)
	defer f.Body.Close()
	b, err := io.ReadAll(f.Body)
	codetest.OK(w.t, "read the body", err)
	return string(b), *f
}

func (w *world) names(depth int) (names []string) {
	w.t.Helper()
	all, truncated, err := w.List(w.t.Context(), w.Dir, depth)
	if err != nil || truncated {
		w.t.Fatalf("List: truncated %v, %v", truncated, err)
	}
	for _, e := range all {
		names = append(names, strings.TrimPrefix(e.Path, w.Dir+"/"))
	}
	slices.Sort(names)
	return names
}

func oneFile(w *world) {
	t := w.t
	e := w.write("deep/below/f", "text")
	if e.Name != "f" || e.Path != w.at("deep/below/f") || e.Kind() != "file" || e.Size != 4 || e.Owner == "" || time.Since(e.ModifiedAt) > time.Minute {
		t.Errorf("WriteFile = %+v", e)
	}
	if got, err := w.Stat(t.Context(), w.at("deep/below/f")); err != nil || got.Size != 4 || got.Path != e.Path || got.Mode != e.Mode {
		t.Errorf("Stat = %+v, %v, want %+v", got, err, e)
	}
	if text, f := w.read("deep/below/f", execution.ReadOptions{}); text != "text" || f.Outcome != execution.ReadWhole || f.Size != 4 {
		t.Errorf("ReadFile = %q, %+v", text, f)
	}
	large := strings.Repeat("0123456789", 1<<18)
	w.write("deep/below/f", large)
	if text, _ := w.read("deep/below/f", execution.ReadOptions{}); text != large {
		t.Errorf("of %d bytes %d were read", len(large), len(text))
	}
	moved, err := w.Move(t.Context(), w.at("deep/below/f"), w.at("g"))
	if err != nil || moved.Path != w.at("g") || moved.Size != int64(len(large)) {
		t.Errorf("Move = %+v, %v", moved, err)
	}
	codetest.Want(w.t, "Stat of what was moved", codetest.ErrOf(w.Stat(t.Context(), w.at("deep/below/f"))), sandbox.NotFound)
	codetest.OK(w.t, "Remove", w.Remove(t.Context(), w.at("deep")))
	if names := w.names(3); !slices.Equal(names, []string{"g"}) {
		t.Errorf("there are %v", names)
	}
}

// sizes writes a file with a stated size and without one, each time over other content.
func sizes(w *world) {
	t := w.t
	for _, content := range []string{"first", "", "longer than before", "short", strings.Repeat("x", 3<<20)} {
		for _, size := range []int64{int64(len(content)), -1} {
			e, err := w.WriteFile(t.Context(), w.at("f"), struct{ io.Reader }{strings.NewReader(content)}, size)
			if err != nil || e.Size != int64(len(content)) || e.Path != w.at("f") {
				t.Errorf("WriteFile of %d bytes, said to be %d = %+v, %v", len(content), size, e, err)
			}
			if text, f := w.read("f", execution.ReadOptions{}); text != content || f.Size != int64(len(content)) {
				t.Errorf("of %d bytes %d were read, said to be %d", len(content), len(text), f.Size)
			}
		}
	}
	broken := io.MultiReader(strings.NewReader("half"), iotest.ErrReader(errors.New("it breaks off")))
	if _, err := w.WriteFile(t.Context(), w.at("broken"), broken, -1); err == nil {
		t.Error("a body that broke off was written")
	}
}

// fileNames uses names that mean something in a URL.
func fileNames(w *world) {
	t := w.t
	for _, name := range []string{"a b", "a+b", "50%", "%2F", "a?path=b", "a&b=c", "a#b", "ä€", ".hidden", "\"quoted\"", "new\nline"} {
		e := w.write(name, name)
		if e.Name != name || e.Path != w.at(name) {
			t.Errorf("WriteFile of %q = %+v", name, e)
		}
		if text, _ := w.read(name, execution.ReadOptions{}); text != name {
			t.Errorf("%q holds %q", name, text)
		}
		if got := w.names(1); !slices.Equal(got, []string{name}) {
			t.Errorf("there are %q, want %q", got, name)
		}
		moved, err := w.Move(t.Context(), w.at(name), w.at("in "+name+"/"+name))
		if err != nil || moved.Name != name {
			t.Errorf("Move of %q = %+v, %v", name, moved, err)
		}
		codetest.OK(w.t, "Remove", w.Remove(t.Context(), w.at("in "+name)))
		codetest.OK(w.t, "Remove of nothing", w.Remove(t.Context(), w.at("in "+name)))
	}
}

func conditions(w *world) {
	t := w.t
	w.write("f", "0123456789")
	_, whole := w.read("f", execution.ReadOptions{})
	if whole.ETag == "" {
		t.Fatal("the file has no tag")
	}
	for _, tt := range []struct {
		opts    execution.ReadOptions
		text    string
		outcome execution.ReadOutcome
	}{
		{execution.ReadOptions{Range: "bytes=2-4"}, "234", execution.ReadPart},
		{execution.ReadOptions{Range: "bytes=7-"}, "789", execution.ReadPart},
		{execution.ReadOptions{Range: "bytes=50-"}, "", execution.ReadOutOfRange},
		{execution.ReadOptions{Range: "bytes=-3"}, "789", execution.ReadPart},
		{execution.ReadOptions{Range: "bytes=2-4", IfRange: `"other"`}, "0123456789", execution.ReadWhole},
		{execution.ReadOptions{IfNoneMatch: whole.ETag}, "", execution.ReadNotModified},
		{execution.ReadOptions{IfMatch: `"other"`}, "", execution.ReadPrecondition},
	} {
		text, f := w.read("f", tt.opts)
		if tt.outcome == execution.ReadOutOfRange {
			text = "" // its body says so
		}
		if text != tt.text || f.Outcome != tt.outcome || f.Outcome == execution.ReadOutOfRange && f.Total != 10 || f.Outcome == execution.ReadPart && (f.Total != 10 || f.Size != int64(len(text))) {
			t.Errorf("%+v: %q, %+v", tt.opts, text, f)
		}
	}
}

func times(w *world) {
	t := w.t
	w.write("f", "0123456789")
	_, whole := w.read("f", execution.ReadOptions{})
	if time.Since(whole.ModifiedAt) > time.Minute {
		t.Fatalf("the file is of %v", whole.ModifiedAt)
	}
	before, after := whole.ModifiedAt.Add(-time.Hour).UTC().Format(http.TimeFormat), whole.ModifiedAt.Add(time.Hour).UTC().Format(http.TimeFormat)
	for _, tt := range []struct {
		opts    execution.ReadOptions
		outcome execution.ReadOutcome
	}{
		{execution.ReadOptions{IfModifiedSince: before}, execution.ReadWhole},
		{execution.ReadOptions{IfModifiedSince: after}, execution.ReadNotModified},
		{execution.ReadOptions{IfUnmodifiedSince: before}, execution.ReadPrecondition},
		{execution.ReadOptions{IfUnmodifiedSince: after}, execution.ReadWhole},
	} {
		if text, f := w.read("f", tt.opts); f.Outcome != tt.outcome || f.Outcome == execution.ReadWhole && text != "0123456789" {
			t.Errorf("%+v: %q, %+v", tt.opts, text, f)
		}
	}
}

func folders(w *world) {
	t := w.t
	d, err := w.MakeDir(t.Context(), w.at("a/b"))
	if err != nil || d.Kind() != "directory" || d.Path != w.at("a/b") {
		t.Errorf("MakeDir = %+v, %v", d, err)
	}
	codetest.Want(w.t, "MakeDir again", codetest.ErrOf(w.MakeDir(t.Context(), w.at("a/b"))), sandbox.Conflict)
	w.write("a/b/f", "x")
	for depth, want := range map[int][]string{1: {"a"}, 2: {"a", "a/b"}, 3: {"a", "a/b", "a/b/f"}} {
		if got := w.names(depth); !slices.Equal(got, want) {
			t.Errorf("%d deep there are %v, want %v", depth, got, want)
		}
	}
}

func refusedFiles(w *world) {
	ctx := w.t.Context()
	w.write("f", "x")
	for what, tt := range map[string]struct {
		err  error
		want sandbox.Code
	}{
		"ReadFile of nothing":      {codetest.ErrOf(w.ReadFile(ctx, w.at("none"), execution.ReadOptions{})), sandbox.NotFound},
		"ReadFile of a folder":     {codetest.ErrOf(w.ReadFile(ctx, w.Dir, execution.ReadOptions{})), sandbox.Invalid},
		"WriteFile over a folder":  {codetest.ErrOf(w.WriteFile(ctx, w.Dir, strings.NewReader("x"), 1)), sandbox.Invalid},
		"Stat of nothing":          {codetest.ErrOf(w.Stat(ctx, w.at("none"))), sandbox.NotFound},
		"Move of nothing":          {codetest.ErrOf(w.Move(ctx, w.at("none"), w.at("x"))), sandbox.NotFound},
		"WriteFile below a file":   {codetest.ErrOf(w.WriteFile(ctx, w.at("f/below"), strings.NewReader("x"), 1)), sandbox.Invalid},
		"Move below itself":        {codetest.ErrOf(w.Move(ctx, w.at("f"), w.at("f/below"))), sandbox.Invalid},
		"MakeDir below a file":     {codetest.ErrOf(w.MakeDir(ctx, w.at("f/below"))), sandbox.Invalid},
		"MakeDir where a file is":  {codetest.ErrOf(w.MakeDir(ctx, w.at("f"))), sandbox.Invalid},
		"Archive of nothing":       {codetest.ErrOf(w.Archive(ctx, "", w.at("none"), execution.Tar)), sandbox.NotFound},
		"Copy of nothing":          {codetest.ErrOf(w.Copy(ctx, execution.CopyRequest{Source: w.at("none"), Destination: w.at("x")})), sandbox.NotFound},
		"Chmod of nothing":         {codetest.ErrOf(w.Chmod(ctx, execution.ChmodRequest{Path: w.at("none"), Mode: 0o600})), sandbox.NotFound},
		"Chmod as an unknown user": {codetest.ErrOf(w.Chmod(ctx, execution.ChmodRequest{User: "nobody-here", Path: w.at("f"), Mode: 0o600})), sandbox.Invalid},
	} {
		codetest.Want(w.t, what, tt.err, tt.want)
	}
	_, _, err := w.List(ctx, w.at("none"), 1)
	codetest.Want(w.t, "List of nothing", err, sandbox.NotFound)
	_, _, err = w.List(ctx, w.at("f"), 1)
	codetest.Want(w.t, "List of a file", err, sandbox.Invalid)
	if names := w.names(2); !slices.Equal(names, []string{"f"}) {
		w.t.Errorf("what was refused left %v", names)
	}
}

func copyAndChmod(w *world) {
	t, ctx := w.t, w.t.Context()
	w.write("a/f", "text")
	done, err := w.Copy(ctx, execution.CopyRequest{Source: w.at("a"), Destination: w.at("b"), Recursive: true})
	if err != nil || done.Files != 1 || done.Bytes != 4 || done.Entry.Path != w.at("b") {
		t.Errorf("Copy = %+v, %v", done, err)
	}
	again := execution.CopyRequest{Source: w.at("a/f"), Destination: w.at("b/f")}
	codetest.Want(w.t, "Copy over an existing file", codetest.ErrOf(w.Copy(ctx, again)), sandbox.Conflict)
	again.Overwrite = true
	codetest.OK(w.t, "Copy", codetest.ErrOf(w.Copy(ctx, again)))
	if n, err := w.Chmod(ctx, execution.ChmodRequest{Path: w.at("b"), Mode: 0o700, Recursive: true}); err != nil || n != 2 {
		t.Errorf("Chmod = %d, %v", n, err)
	}
	if e, err := w.Stat(ctx, w.at("b/f")); err != nil || e.Mode != 0o700 {
		t.Errorf("Stat = %+v, %v", e, err)
	}
}

func searchAndReplace(w *world) {
	t, ctx := w.t, w.t.Context()
	w.write("a", "one\ntwo three\n")
	w.write("b", "two two\n")
	files := execution.FileSelection{Path: w.Dir}
	found, err := w.Search(ctx, execution.SearchRequest{Files: files, Pattern: "two", MaxResults: 10})
	if err != nil || len(found.Matches) != 2 || found.Matches[0].Path != w.at("a") || found.Matches[0].Line != 2 || len(found.Matches[1].Spans) != 2 || found.Truncated {
		t.Errorf("Search = %+v, %v", found, err)
	}
	codetest.Want(w.t, "a pattern that is none", codetest.ErrOf(w.Search(ctx, execution.SearchRequest{Files: files, Pattern: "(", MaxResults: 10})), sandbox.Invalid)
	req := execution.ReplaceRequest{Files: files, Pattern: "two", Replacement: "2", Expected: new(int64(7))}
	codetest.Want(w.t, "another number than expected", codetest.ErrOf(w.Replace(ctx, req)), sandbox.Conflict)
	req.Expected = new(int64(3))
	if done, err := w.Replace(ctx, req); err != nil || done.Count != 3 || len(done.Files) != 2 || done.Files[1].Count != 2 {
		t.Errorf("Replace = %+v, %v", done, err)
	}
	if text, _ := w.read("b", execution.ReadOptions{}); text != "2 2\n" {
		t.Errorf("the file has %q", text)
	}
}

func archiveAndExtract(w *world) {
	t, ctx := w.t, w.t.Context()
	w.write("a/deep/f", "text")
	for _, format := range []execution.ArchiveFormat{execution.Tar, execution.TarGz, execution.Zip} {
		archive, err := w.Archive(ctx, "", w.at("a"), format)
		codetest.OK(w.t, "Archive", err)
		var whole bytes.Buffer
		_, err = whole.ReadFrom(archive)
		codetest.OK(w.t, "read the archive", err)
		archive.Close()
		to := "to-" + string(format)
		if done, err := w.Extract(ctx, "", w.at(to), "", bytes.NewReader(whole.Bytes())); err != nil || done.Files != 1 || done.Bytes != 4 {
			t.Errorf("Extract = %+v, %v", done, err)
		}
		if text, _ := w.read(to+"/deep/f", execution.ReadOptions{}); text != "text" {
			t.Errorf("from %s came %q", format, text)
		}
	}
	codetest.Want(w.t, "Extract of nonsense", codetest.ErrOf(w.Extract(ctx, "", w.at("x"), execution.TarGz, strings.NewReader("nonsense"))), sandbox.Invalid)
}

func changes(w *world) {
	t, ctx := w.t, w.t.Context()
	req := execution.WatchRequest{Path: w.Dir}
	from, none, err := w.Changes(ctx, req)
	if err != nil || len(none) != 0 || from.Cursor == "" {
		t.Fatalf("Changes = %+v, %v, %v", from, none, err)
	}
	w.write("f", "x")
	req.Since = from.Cursor
	to, all, err := w.Changes(ctx, req)
	for began := time.Now(); err == nil && len(all) == 0 && time.Since(began) < 30*time.Second; { // the kernel reports a change a moment later
		time.Sleep(time.Millisecond)
		to, all, err = w.Changes(ctx, req)
	}
	if err != nil || len(all) == 0 || all[0].Type != execution.FileCreated || all[0].Path != w.at("f") || to.Reset || to.Cursor == from.Cursor {
		t.Errorf("Changes = %+v, %+v, %v", to, all, err)
	}
	req.Path = w.at("none")
	_, _, err = w.Changes(ctx, req)
	codetest.Want(w.t, "Changes below nothing", err, sandbox.NotFound)
}

func watch(w *world) {
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	var seen []execution.FileChange
	stop := sandbox.Errorf(sandbox.Unsupported, "enough")
	err := w.Watch(ctx, execution.WatchRequest{Path: w.Dir}, func(e execution.WatchEvent) error {
		if e.Position != nil {
			w.write("f", "x")
			return nil
		}
		seen = append(seen, *e.Change)
		return stop
	})
	codetest.Want(w.t, "Watch", err, sandbox.Unsupported)
	if len(seen) != 1 || seen[0].Path != w.at("f") || seen[0].Type != execution.FileCreated {
		w.t.Errorf("it saw %+v", seen)
	}
	none := execution.WatchRequest{Path: w.at("none")}
	codetest.Want(w.t, "Watch of nothing", w.Watch(ctx, none, func(execution.WatchEvent) error { return nil }), sandbox.NotFound)
}
