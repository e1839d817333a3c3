package files

import (
	"errors"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/filesystem"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest"
)

func TestSingleFiles(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	at := func(name string) string { return filepath.Join(r.dir, name) }
	made, err := r.MakeDir(ctx, connect.NewRequest(&guestv1.MakeDirRequest{Path: at("d/e")}))
	if err != nil || made.Msg.Entry.Path != at("d/e") || made.Msg.Entry.Type != guestv1.FileType_FILE_TYPE_DIRECTORY {
		t.Fatalf("MakeDir = %v, %v", made, err)
	}
	for _, folder := range []string{"d", "d/e"} {
		if got, err := os.Stat(at(folder)); err != nil || got.Sys().(*syscall.Stat_t).Uid != uid {
			t.Errorf("%s is not the default user's: %v", folder, err)
		}
	}
	if err := errors.Join(
		os.WriteFile(at("d/f"), []byte("12345"), 0o640), os.Chmod(at("d/f"), 0o640|fs.ModeSetuid), os.Symlink("f", at("d/link")), os.Symlink("none\xff", at("d/loose")),
		os.WriteFile(at("d/odd\xff"), nil, 0o600), unix.Mkfifo(at("d/pipe"), 0o600), os.Symlink("e", at("d/to")), os.WriteFile(at("d/e/g"), nil, 0o600),
	); err != nil {
		t.Fatal(err)
	}
	stat := func(name string) *guestv1.FileEntry {
		t.Helper()
		s, err := r.Stat(ctx, connect.NewRequest(&guestv1.StatRequest{Path: at(name)}))
		if err != nil {
			t.Fatal(err)
		}
		return s.Msg.Entry
	}
	if e := stat("d/link"); e.Type != guestv1.FileType_FILE_TYPE_FILE || e.GetSymlinkTarget() != at("d/f") || e.Size != 5 || e.Mode != 0o4640 || e.Owner != "root" {
		t.Errorf("a link: %v", e)
	}
	if e := stat("d/loose"); e.Type != guestv1.FileType_FILE_TYPE_SYMLINK || e.GetSymlinkTarget() != "none\uFFFD" {
		t.Errorf("a link to nothing: %v", e)
	}
	if e := stat("d/pipe"); e.Type != guestv1.FileType_FILE_TYPE_UNSPECIFIED {
		t.Errorf("a pipe: %v", e)
	}
	for _, tt := range []struct {
		depth, limit uint32
		want         string
		truncated    bool
	}{
		{0, 0, "d", false},
		{2, 0, "d d/e d/f d/link d/loose d/odd\uFFFD d/pipe d/to", false},
		{3, 0, "d d/e d/e/g d/f d/link d/loose d/odd\uFFFD d/pipe d/to", false},
		{3, 3, "d d/e d/e/g", true},
		{3, 9, "d d/e d/e/g d/f d/link d/loose d/odd\uFFFD d/pipe d/to", false},
	} {
		l, err := r.ListDir(ctx, connect.NewRequest(&guestv1.ListDirRequest{Path: r.dir, Depth: tt.depth, Limit: tt.limit}))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range l.Msg.Entries {
			got = append(got, strings.TrimPrefix(e.Path, r.dir+"/"))
		}
		if strings.Join(got, " ") != tt.want || l.Msg.Truncated != tt.truncated {
			t.Errorf("%d deep, at most %d: %v, truncated %v", tt.depth, tt.limit, got, l.Msg.Truncated)
		}
	}
	move := func(from, to string) error {
		_, err := r.Move(ctx, connect.NewRequest(&guestv1.MoveRequest{Source: at(from), Destination: at(to)}))
		return err
	}
	if err := move("d/link", "new/link"); err != nil {
		t.Error(err)
	}
	if e := stat("new"); e.Owner != "user" {
		t.Errorf("a folder above what was moved is %s's", e.Owner)
	}
	for what, tt := range map[string]struct {
		err  error
		want connect.Code
	}{
		"a folder into itself": {move("d", "d/x/y"), connect.CodeInvalidArgument},
		"nothing":              {move("none", "x"), connect.CodeNotFound},
		"over a full folder":   {move("new", "d"), connect.CodeAlreadyExists},
	} {
		if got := connect.CodeOf(tt.err); got != tt.want {
			t.Errorf("moving %s: %v, want %s", what, tt.err, tt.want)
		}
	}
	for range 2 {
		if _, err := r.Remove(ctx, connect.NewRequest(&guestv1.RemoveRequest{Path: at("d")})); err != nil {
			t.Error(err)
		}
	}
	for _, path := range []string{"", "relative", "/a/../b", "/a\x00b", "/" + strings.Repeat("a", maxPath)} {
		if _, err := r.Stat(ctx, connect.NewRequest(&guestv1.StatRequest{Path: path})); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("Stat of %.20q: %v", path, err)
		}
		if _, err := r.Remove(ctx, connect.NewRequest(&guestv1.RemoveRequest{Path: path})); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("Remove of %.20q: %v", path, err)
		}
	}
}

// do answers a request for a file's content.
func (r *rig) do(method, path string, body io.Reader) *httptest.ResponseRecorder {
	req := httptest.NewRequest(method, guest.FilesPath+"?path="+url.QueryEscape(path), body)
	w := httptest.NewRecorder()
	if method == http.MethodGet {
		r.service.Read(w, req)
	} else {
		r.service.Write(w, req)
	}
	return w
}

func TestContents(t *testing.T) {
	r := newRig(t)
	at := func(name string) string { return filepath.Join(r.dir, name) }
	w := r.do(http.MethodPut, at("a/f"), strings.NewReader("text"))
	var e guestv1.FileEntry
	if err := proto.Unmarshal(w.Body.Bytes(), &e); w.Code != http.StatusOK || err != nil || e.Path != at("a/f") || e.Size != 4 || e.Owner != "user" {
		t.Errorf("%d, %v, %v", w.Code, &e, err)
	}
	if w := r.do(http.MethodGet, at("a/f"), nil); w.Code != http.StatusOK || w.Body.String() != "text" || w.Header().Get("ETag") == "" {
		t.Errorf("%d %q %v", w.Code, w.Body, w.Header())
	}
	if err := unix.Mkfifo(at("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		method, path string
		code         int
		message      string
	}{
		{"GET", at("none"), 404, "path '" + at("none") + "' does not exist"},
		{"GET", r.dir, 400, "is not a regular file: it is a directory"},
		{"GET", at("pipe"), 400, "is not a regular file: it is a pipe"},
		{"PUT", at("pipe"), 400, "path is not a regular file"},
		{"PUT", r.dir, 400, "path is a directory"},
		{"PUT", at("a/f/below"), 400, "not a directory"},
		{"GET", "a/f", 400, "absolute"},
		{"PUT", r.dir + "/../x", 400, "absolute"},
		{"GET", "", 400, "absolute"},
	} {
		w := r.do(tt.method, tt.path, strings.NewReader("x"))
		if w.Code != tt.code || !strings.Contains(w.Body.String(), tt.message) || w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%s %q: %d %s", tt.method, tt.path, w.Code, w.Body)
		}
	}
	half := func() io.Reader {
		return io.MultiReader(strings.NewReader("half"), iotest.ErrReader(io.ErrUnexpectedEOF))
	}
	if w := r.do(http.MethodPut, at("broken"), half()); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "ended early") {
		t.Errorf("a body that broke off: %d %s", w.Code, w.Body)
	}
	if _, err := os.Lstat(at("broken")); !os.IsNotExist(err) {
		t.Errorf("half a new file stayed: %v", err)
	}
	r.do(http.MethodPut, at("a/f"), half())
	if _, err := os.Lstat(at("a/f")); err != nil {
		t.Errorf("a file that existed is gone: %v", err)
	}
}

// A client reads the answers of an earlier Guest, which speaks E2B's protocol, with the
// messages of this service.
func TestNumbersAreE2Bs(t *testing.T) {
	for _, tt := range []struct{ own, theirs proto.Message }{
		{&guestv1.StatRequest{}, &filesystem.StatRequest{}},
		{&guestv1.StatResponse{}, &filesystem.StatResponse{}},
		{&guestv1.ListDirRequest{}, &filesystem.ListDirRequest{}},
		{&guestv1.ListDirResponse{}, &filesystem.ListDirResponse{}},
		{&guestv1.MakeDirRequest{}, &filesystem.MakeDirRequest{}},
		{&guestv1.MakeDirResponse{}, &filesystem.MakeDirResponse{}},
		{&guestv1.MoveRequest{}, &filesystem.MoveRequest{}},
		{&guestv1.MoveResponse{}, &filesystem.MoveResponse{}},
		{&guestv1.RemoveRequest{}, &filesystem.RemoveRequest{}},
		{&guestv1.RemoveResponse{}, &filesystem.RemoveResponse{}},
		{&guestv1.FileEntry{}, &filesystem.EntryInfo{}},
	} {
		own, theirs := tt.own.ProtoReflect().Descriptor().Fields(), tt.theirs.ProtoReflect().Descriptor()
		for i := range own.Len() {
			f := own.Get(i)
			switch of := theirs.Fields().ByNumber(f.Number()); {
			case of == nil && (f.Name() == "limit" || f.Name() == "truncated"): // headers there
			case of == nil || of.Name() != f.Name() || of.Kind() != f.Kind() || of.Cardinality() != f.Cardinality():
				t.Errorf("%s differs from %v", f.FullName(), of)
			}
		}
	}
	if !maps.Equal(guestv1.FileType_value, filesystem.FileType_value) {
		t.Errorf("types of files are %v, and theirs %v", guestv1.FileType_value, filesystem.FileType_value)
	}
}
