package files

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1/guestv1connect"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

const uid = 54321

var theReaper = sync.OnceValue(server.NewReaper)

// rig is the service on this machine, for a user of its own.
type rig struct {
	guestv1connect.FilesServiceClient
	dir     string // the user's
	service *Service
}

func newRig(t *testing.T) *rig {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("the guest runs as root")
	}
	// t.TempDir lies below a folder that only root may enter.
	dir, err := os.MkdirTemp("", "files-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chown(dir, uid, uid)); err != nil {
		t.Fatal(err)
	}
	accounts := server.Accounts{Etc: fstest.MapFS{"passwd": {Data: fmt.Appendf(nil,
		"root:x:0:0:root:/root:/bin/bash\nuser:x:%d:%d::%s:/bin/bash\n", uid, uid, dir)}}}
	g := server.New(accounts, theReaper())
	if err := g.Bind(server.Owner{SandboxID: "i", BootNumber: 1, User: "user", Cwd: dir}, 0, nil); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	service := New(g)
	mux.Handle(service.Handler())
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return &rig{guestv1connect.NewFilesServiceClient(s.Client(), s.URL), dir, service}
}

// tree makes files of the user's: a name that ends in "/" is a folder, a
// content that begins with "->" a link.
func (r *rig) tree(t *testing.T, files map[string]string) {
	t.Helper()
	u := server.User{Name: "user", UID: uid, GID: uid}
	err := server.As(u, func() error {
		for _, name := range slices.Sorted(maps.Keys(files)) {
			path := filepath.Join(r.dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
			content := files[name]
			var err error
			if target, ok := strings.CutPrefix(content, "->"); ok {
				err = os.Symlink(target, path)
			} else if strings.HasSuffix(name, "/") {
				err = os.MkdirAll(path, 0o755)
			} else {
				err = os.WriteFile(path, []byte(content), 0o644)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// list is what is below dir: folders with a slash, links with their target.
func list(t *testing.T, dir string) string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		switch {
		case e.IsDir():
			rel += "/"
		case e.Type()&fs.ModeSymlink != 0:
			target, _ := os.Readlink(path)
			rel += "->" + target
		}
		all = append(all, rel)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, " ")
}

func TestAs(t *testing.T) {
	r := newRig(t)
	u := server.User{Name: "user", UID: uid, GID: uid, Groups: []uint32{uid, 4}}
	var groups []int
	err := server.As(u, func() error {
		if unix.Geteuid() != uid || unix.Getegid() != uid {
			t.Errorf("acts as %d:%d", unix.Geteuid(), unix.Getegid())
		}
		groups, _ = unix.Getgroups()
		return os.WriteFile(filepath.Join(r.dir, "mine"), nil, 0o644)
	})
	if err != nil || !slices.Equal(groups, []int{4, uid}) {
		t.Errorf("groups %v, %v", groups, err)
	}
	if err := server.As(u, func() error { return os.WriteFile("/etc/files-test", nil, 0o644) }); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("wrote to /etc: %v", err)
	}
	if err := server.As(u, func() error { panic("x") }); err == nil {
		t.Error("a panic is no error")
	}
	// Every thread is root's again, whatever ran where.
	tasks, _ := filepath.Glob("/proc/self/task/*/status")
	for _, task := range tasks {
		status, _ := os.ReadFile(task)
		if bytes.Contains(status, fmt.Appendf(nil, "\t%d\t", uid)) {
			t.Errorf("%s is still the user's", task)
		}
	}
}

func TestCopy(t *testing.T) {
	r := newRig(t)
	r.tree(t, map[string]string{"d/a": "aaa", "d/sub/b": "bb", "d/l": "->a", "f": "new", "old": "old"})
	if err := os.Chmod(filepath.Join(r.dir, "d/a"), 0o751); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.dir, "locked"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(r.dir, "d/pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		m      *guestv1.CopyRequest
		want   connect.Code // 0: none
		result string       // files, bytes, skipped
	}{
		{"folder", &guestv1.CopyRequest{Source: "d", Destination: "deep/e", Recursive: true}, 0, "3 5 1"},
		{"folder again", &guestv1.CopyRequest{Source: "d", Destination: "deep/e", Recursive: true}, connect.CodeAlreadyExists, ""},
		{"merged", &guestv1.CopyRequest{Source: "d", Destination: "deep/e", Recursive: true, Overwrite: true}, 0, "3 5 1"},
		{"into itself", &guestv1.CopyRequest{Source: "d", Destination: "d/sub/x", Recursive: true}, connect.CodeInvalidArgument, ""},
		{"onto itself", &guestv1.CopyRequest{Source: "d", Destination: "d", Recursive: true, Overwrite: true}, connect.CodeInvalidArgument, ""},
		{"folder as a file", &guestv1.CopyRequest{Source: "d", Destination: "x"}, connect.CodeInvalidArgument, ""},
		{"exists", &guestv1.CopyRequest{Source: "f", Destination: "old"}, connect.CodeAlreadyExists, ""},
		{"replaced", &guestv1.CopyRequest{Source: "f", Destination: "old", Overwrite: true}, 0, "1 3 0"},
		{"onto a folder", &guestv1.CopyRequest{Source: "f", Destination: "d", Overwrite: true}, connect.CodeAlreadyExists, ""},
		{"missing", &guestv1.CopyRequest{Source: "none", Destination: "x"}, connect.CodeNotFound, ""},
		{"another's", &guestv1.CopyRequest{Source: "locked", Destination: "x"}, connect.CodePermissionDenied, ""},
		{"another's, as root", &guestv1.CopyRequest{Source: "locked", Destination: "x", User: "root"}, 0, "1 1 0"},
		{"nobody", &guestv1.CopyRequest{Source: "f", Destination: "y", User: "none"}, connect.CodeInvalidArgument, ""},
		{"pipe", &guestv1.CopyRequest{Source: "d/pipe", Destination: "y"}, connect.CodeInvalidArgument, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.m.Source, tt.m.Destination = filepath.Join(r.dir, tt.m.Source), filepath.Join(r.dir, tt.m.Destination)
			got, err := r.Copy(t.Context(), connect.NewRequest(tt.m))
			if err != nil {
				if connect.CodeOf(err) != tt.want {
					t.Error(err)
				}
				return
			}
			if s := fmt.Sprint(got.Msg.Files, got.Msg.Bytes, got.Msg.Skipped); s != tt.result || tt.want != 0 {
				t.Errorf("copied %s", s)
			}
		})
	}
	if got := list(t, filepath.Join(r.dir, "deep")); got != "e/ e/a e/l->a e/sub/ e/sub/b" {
		t.Errorf("copied %s", got)
	}
	info, err := os.Stat(filepath.Join(r.dir, "deep/e/a"))
	if err != nil || info.Mode().Perm() != 0o751 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if left, _ := filepath.Glob(filepath.Join(r.dir, ".cloud-sandbox-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestPathsAreChecked(t *testing.T) {
	for _, p := range []string{"", "a", "./a", "/a/../b", "/a/", "/a//b", "/a\x00b", "/" + strings.Repeat("x", maxPath)} {
		if err := checkPaths(p); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("%.20q: %v", p, err)
		}
	}
	if err := checkPaths("/", "/a/b c"); err != nil {
		t.Error(err)
	}
}

func TestChmod(t *testing.T) {
	r := newRig(t)
	r.tree(t, map[string]string{"d/a": "", "d/e/b": "", "d/l": "->/etc/passwd"})
	req := &guestv1.ChmodRequest{Path: filepath.Join(r.dir, "d"), Mode: 0o600, Recursive: true}
	got, err := r.Chmod(t.Context(), connect.NewRequest(req))
	if err != nil || got.Msg.Changed != 4 {
		t.Errorf("changed %v, %v", got, err)
	}
	for _, name := range []string{"d", "d/a", "d/e", "d/e/b"} {
		if info, err := os.Lstat(filepath.Join(r.dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	for path, want := range map[string]connect.Code{"/etc/passwd": connect.CodePermissionDenied, r.dir + "/none": connect.CodeNotFound} {
		if _, err := r.Chmod(t.Context(), connect.NewRequest(&guestv1.ChmodRequest{Path: path, Mode: 0o666})); connect.CodeOf(err) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestIgnoreRules(t *testing.T) {
	for _, tt := range []struct {
		rules, path string
		dir, want   bool
	}{
		{"*.log", "a.log", false, true},
		{"*.log", "x/y/a.log", false, true},
		{"*.log", "a.log.txt", false, false},
		{"*.log\n!keep.log", "keep.log", false, false},
		{"!keep.log\n*.log", "keep.log", false, true},
		{"/build", "build", true, true},
		{"/build", "x/build", true, false},
		{"build/", "build", false, false},
		{"build/", "x/build", true, true},
		{"a/b", "a/b", false, true},
		{"a/b", "x/a/b", false, false},
		{"**/b", "x/y/b", false, true},
		{"a/**/b", "a/x/y/b", false, true},
		{"a/**/b", "a/b", false, true},
		{"# c", "# c", false, false},
		{`\#c`, "#c", false, true},
		{`\!c`, "!c", false, true},
		{"c  ", "c", false, true},
		{`c\ `, "c ", false, true},
		{"a{b,c}", "ab", false, false},
		{"a{b,c}", "a{b,c}", false, true},
		{"[ab].c", "a.c", false, true},
		{"[!ab].c", "a.c", false, false},
		{"f?o", "foo", false, true},
		{"", "x", false, false},
		{"/", "x", false, false},
		{"c\r", "c", false, true},
	} {
		i := &ignores{dir: "/top", rules: parseRules([]byte(tt.rules))}
		if got := i.ignored("/top/"+tt.path, tt.dir); got != tt.want {
			t.Errorf("%q about %s: %v", tt.rules, tt.path, got)
		}
	}
}

func (r *rig) search(t *testing.T, m *guestv1.SearchRequest) (string, *guestv1.SearchEnd, error) {
	t.Helper()
	if m.Files == nil {
		m.Files = &guestv1.FileSelection{}
	}
	m.Files.Path = filepath.Join(r.dir, m.Files.Path)
	if m.MaxResults == 0 {
		m.MaxResults = 1000
	}
	stream, err := r.Search(t.Context(), connect.NewRequest(m))
	if err != nil {
		return "", nil, err
	}
	defer stream.Close()
	var all []string
	for stream.Receive() {
		if end := stream.Msg().GetEnd(); end != nil {
			return strings.Join(all, " "), end, nil
		}
		m := stream.Msg().GetMatch()
		s := strings.TrimPrefix(m.Path, r.dir+"/")
		if m.Line > 0 {
			s += fmt.Sprintf(":%d:%s", m.Line, m.Text)
		}
		for _, span := range m.Spans {
			s += fmt.Sprintf("@%d-%d", span.Start, span.End)
		}
		if len(m.Before)+len(m.After) > 0 {
			s += fmt.Sprintf("%s", [][]byte{bytes.Join(m.Before, []byte{'|'}), bytes.Join(m.After, []byte{'|'})})
		}
		all = append(all, s)
	}
	return "", nil, stream.Err()
}

func TestSearch(t *testing.T) {
	r := newRig(t)
	r.tree(t, map[string]string{
		"a.txt": "one\ntwo\nthree\r\nfour", "b/c.go": "func Two() {}\n// two two\n", "b/.hidden": "two",
		"bin": "two\x00", "node_modules/x.js": "two", ".gitignore": "node_modules/\n*.log\n", "x.log": "two",
		"b/.gitignore": "!keep.log", "b/keep.log": "two", "link": "->a.txt", ".git/config": "two",
		"long": strings.Repeat("y", 5000) + "two", "b/locked": "two",
	})
	if err := os.Chmod(filepath.Join(r.dir, "b/locked"), 0); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		m    *guestv1.SearchRequest
		want string
	}{
		{"plain", &guestv1.SearchRequest{Pattern: "two"}, "a.txt:2:two@0-3 b/c.go:2:// two two@3-6@7-10 b/keep.log:1:two@0-3 long:1:" + strings.Repeat("y", 2048)},
		{"case", &guestv1.SearchRequest{Pattern: "two", IgnoreCase: true, Files: &guestv1.FileSelection{Globs: []string{"*.go"}}}, "b/c.go:1:func Two() {}@5-8 b/c.go:2:// two two@3-6@7-10"},
		{"anchors", &guestv1.SearchRequest{Pattern: "^t.*e$"}, "a.txt:3:three@0-5"},
		{"ends of text", &guestv1.SearchRequest{Pattern: `\Atwo\z`}, "a.txt:2:two@0-3 b/keep.log:1:two@0-3"},
		{"never over lines", &guestv1.SearchRequest{Pattern: `one\s+two`}, ""},
		{"newline in a class", &guestv1.SearchRequest{Pattern: `e[^x]?t`, Files: &guestv1.FileSelection{Path: "a.txt"}}, ""},
		{"literal", &guestv1.SearchRequest{Pattern: "()", Literal: true}, "b/c.go:1:func Two() {}@8-10"},
		{"word", &guestv1.SearchRequest{Pattern: "o|two", Word: true, Files: &guestv1.FileSelection{Path: "b/c.go"}}, "b/c.go:2:// two two@3-6@7-10"},
		{"context", &guestv1.SearchRequest{Pattern: "two|three", ContextLines: 1, Files: &guestv1.FileSelection{Path: "a.txt"}}, "a.txt:2:two@0-3[one three] a.txt:3:three@0-5[two four]"},
		{"files", &guestv1.SearchRequest{Pattern: "two", FilesOnly: true}, "a.txt b/c.go b/keep.log long"},
		{"names", &guestv1.SearchRequest{Files: &guestv1.FileSelection{Globs: []string{"*.{txt,go}", "!c*"}}}, "a.txt"},
		{"path glob", &guestv1.SearchRequest{Files: &guestv1.FileSelection{Globs: []string{"b/**"}}}, "b/c.go b/keep.log b/locked"},
		{"hidden", &guestv1.SearchRequest{Pattern: "^two$", FilesOnly: true, Files: &guestv1.FileSelection{Hidden: true}}, "a.txt b/.hidden b/keep.log"},
		{"all", &guestv1.SearchRequest{Pattern: "^two$", FilesOnly: true, Files: &guestv1.FileSelection{Hidden: true, NoIgnore: true}}, ".git/config a.txt b/.hidden b/keep.log node_modules/x.js x.log"},
		{"below, rules from above", &guestv1.SearchRequest{Pattern: "two", Files: &guestv1.FileSelection{Path: "node_modules"}}, "x.js:1:two@0-3"},
		{"one result", &guestv1.SearchRequest{Pattern: "two", MaxResults: 1}, "a.txt:2:two@0-3"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sub := ""
			if tt.m.Files != nil {
				sub = tt.m.Files.Path
			}
			got, end, err := r.search(t, tt.m)
			if sub == "node_modules" {
				got = strings.ReplaceAll(got, sub+"/", "")
			}
			if err != nil || got != tt.want {
				t.Errorf("found %.300q, want %.300q, %v", got, tt.want, err)
			}
			if err == nil && end.Truncated != (tt.m.MaxResults == 1) {
				t.Errorf("truncated: %v", end.Truncated)
			}
		})
	}
	for _, m := range []*guestv1.SearchRequest{
		{Pattern: "("},
		{Pattern: `(a)\1`},
		{Pattern: "x", Files: &guestv1.FileSelection{Globs: []string{"["}}},
		{Pattern: "x", MaxResults: maxResults + 1},
		{Pattern: strings.Repeat("x", maxPattern+1)},
		{Pattern: "a{1000}{1000}"},
	} {
		if _, _, err := r.search(t, m); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("%.20q: %v", m.Pattern, err)
		}
	}
}

// Lines have their numbers also where they do not fit into a buffer. There are no
// more of them than a slow machine gets through, with the race detector, before the
// time of a search is over.
func TestSearchManyLines(t *testing.T) {
	r := newRig(t)
	var text strings.Builder
	for i := range 40_000 {
		fmt.Fprintf(&text, "line %d\n", i+1)
	}
	text.WriteString(strings.Repeat("z", 2*pieceSize) + "needle\nneedle\n")
	r.tree(t, map[string]string{"big": text.String()})
	for _, more := range []string{"", "|\\A\\z"} {
		got, _, err := r.search(t, &guestv1.SearchRequest{Pattern: "^line (17777|39999)$|^needle$" + more})
		if want := "big:17777:line 17777@0-10 big:39999:line 39999@0-10 big:40002:needle@0-6"; err != nil || got != want {
			t.Errorf("found %.400q, %v", got, err)
		}
	}
}

func (r *rig) archive(t *testing.T, path string, format guestv1.ArchiveFormat) ([]byte, error) {
	t.Helper()
	stream, err := r.Archive(t.Context(), connect.NewRequest(&guestv1.ArchiveRequest{Path: path, Format: format}))
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	var all []byte
	for stream.Receive() {
		all = append(all, stream.Msg().Data...)
	}
	return all, stream.Err()
}

func (r *rig) extract(ctx context.Context, path string, format guestv1.ArchiveFormat, data []byte) (*guestv1.ExtractResponse, error) {
	stream := r.Extract(ctx)
	err := stream.Send(&guestv1.ExtractRequest{Part: &guestv1.ExtractRequest_Start{Start: &guestv1.ExtractStart{Path: path, Format: format}}})
	for piece := range slices.Chunk(data, 1000) {
		if err == nil {
			err = stream.Send(&guestv1.ExtractRequest{Part: &guestv1.ExtractRequest_Data{Data: piece}})
		}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	resp, err := stream.CloseAndReceive()
	if err != nil {
		return nil, err
	}
	return resp.Msg, nil
}

func TestArchiveAndBack(t *testing.T) {
	r := newRig(t)
	big := strings.Repeat("0123456789", 100_000)
	r.tree(t, map[string]string{"d/a": "aaa", "d/sub/b": big, "d/empty/": "", "d/l": "->/etc/passwd", "d/ü": "x"})
	if err := os.Chmod(filepath.Join(r.dir, "d/a"), 0o4750); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(r.dir, "d/sub"), 0o555); err != nil {
		t.Fatal(err)
	}
	want := list(t, filepath.Join(r.dir, "d"))
	for _, format := range []guestv1.ArchiveFormat{1, 2, 3} {
		data, err := r.archive(t, filepath.Join(r.dir, "d"), format)
		if err != nil {
			t.Fatal(format, err)
		}
		to := filepath.Join(r.dir, "out", format.String())
		for range 2 { // again, over what is there
			done, err := r.extract(t.Context(), to, 0, data)
			if err != nil || done.Files != 3 || done.Directories != 2 || done.Links != 1 || done.Bytes != int64(len(big))+4 {
				t.Errorf("%v: %v, %v", format, done, err)
				break
			}
			_ = os.Chmod(filepath.Join(to, "sub"), 0o755) // or nothing in it can be replaced
		}
		if got := list(t, to); got != want {
			t.Errorf("%v: %s, want %s", format, got, want)
		}
		info, err := os.Stat(filepath.Join(to, "a"))
		if err != nil || info.Mode() != 0o750 {
			t.Errorf("%v: mode %v, %v", format, info, err)
		}
		if got, _ := os.ReadFile(filepath.Join(to, "sub/b")); string(got) != big {
			t.Errorf("%v: %d bytes came back", format, len(got))
		}
	}
	for path, code := range map[string]connect.Code{"d/a": connect.CodeInvalidArgument, "none": connect.CodeNotFound} {
		if _, err := r.archive(t, filepath.Join(r.dir, path), 1); connect.CodeOf(err) != code {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := os.WriteFile(filepath.Join(r.dir, "d/locked"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if data, err := r.archive(t, filepath.Join(r.dir, "d"), 1); connect.CodeOf(err) != connect.CodePermissionDenied || len(data) > 0 {
		t.Errorf("a file of somebody else's: %d bytes, %v", len(data), err)
	}
}

// What is removed, or becomes something else, between the moments at which packing
// looks at it is left out, and the rest is there.
func TestArchiveOfWhatChanges(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"removed": os.RemoveAll,
		"a link":  func(path string) error { return errors.Join(os.RemoveAll(path), os.Symlink("/etc/passwd", path)) },
		"a pipe":  func(path string) error { return errors.Join(os.RemoveAll(path), unix.Mkfifo(path, 0o600)) },
		"a file": func(path string) error {
			return errors.Join(os.RemoveAll(path), os.WriteFile(path, []byte("new"), 0o600))
		},
	} {
		for _, moment := range []string{"before it is looked at", "before it is packed"} {
			t.Run(name+" "+moment, func(t *testing.T) {
				r := newRig(t)
				r.tree(t, map[string]string{"a": "a", "b": "b", "c/d": "d", "e": "->a", "z": "z"})
				root, err := os.Open(r.dir)
				if err != nil {
					t.Fatal(err)
				}
				defer root.Close()
				var out bytes.Buffer
				p := &tarPacker{Writer: tar.NewWriter(&out)}
				err = each(t.Context(), root, func(i item) error {
					var failed error
					for _, other := range []string{"b", "c", "e"} {
						if moment == "before it is packed" && i.path == other || moment == "before it is looked at" && i.path == "a" {
							failed = errors.Join(failed, change(filepath.Join(r.dir, other)))
						}
					}
					return errors.Join(failed, packOne(t.Context(), p, i))
				})
				if err != nil || p.Close() != nil {
					t.Fatal(err)
				}
				var names []string
				for in := tar.NewReader(&out); ; {
					h, err := in.Next()
					if err != nil {
						break
					}
					names = append(names, h.Name)
				}
				if len(names) < 2 || names[0] != "a" || names[len(names)-1] != "z" || slices.Contains(names, "c/d") {
					t.Errorf("packed %q", names)
				}
			})
		}
	}
}

func tarOf(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range headers {
		h.Size = 0
		if h.Typeflag == tar.TypeReg {
			h.Size = 4
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			io.WriteString(w, "evil")
		}
	}
	w.Close()
	return out.Bytes()
}

func zipOf(t testing.TB, names ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for _, name := range names {
		f, err := w.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(f, "evil")
	}
	w.Close()
	return out.Bytes()
}

// Whatever an archive holds, it writes nowhere but in the folder.
func TestHostileArchives(t *testing.T) {
	r := newRig(t)
	r.tree(t, map[string]string{"outside/keep": "kept", "in/here": "kept", "in/out": "->../outside", "in/abs": "->" + r.dir + "/outside"})
	reg := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name} }
	link := func(name, target string) tar.Header {
		return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target}
	}
	hard := func(name, target string) tar.Header {
		return tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target}
	}
	for name, tt := range map[string]struct {
		data []byte
		code connect.Code // 0: taken
	}{
		"dots":                    {tarOf(t, reg("../outside/keep")), connect.CodeInvalidArgument},
		"dots within":             {tarOf(t, reg("a/../../outside/keep")), connect.CodeInvalidArgument},
		"absolute":                {tarOf(t, reg(r.dir+"/outside/keep")), connect.CodeInvalidArgument},
		"through a link":          {tarOf(t, reg("out/keep")), connect.CodeInvalidArgument},
		"through an absolute one": {tarOf(t, reg("abs/keep")), connect.CodeInvalidArgument},
		"through its own link":    {tarOf(t, link("x", ".."), reg("x/outside/keep")), connect.CodeInvalidArgument},
		"through two of its own":  {tarOf(t, link("y", "."), link("y2", "y/.."), reg("y2/outside/keep")), connect.CodeInvalidArgument},
		"onto its own link":       {tarOf(t, link("z", "../outside/keep"), reg("z")), 0},
		"a hard link out":         {tarOf(t, hard("h", "../outside/keep")), connect.CodeInvalidArgument},
		"a hard link by a link":   {tarOf(t, hard("h", "out/keep"), reg("h")), connect.CodeInvalidArgument},
		"an absolute hard link":   {tarOf(t, hard("h", "/etc/passwd")), connect.CodeInvalidArgument},
		"a folder over a link":    {tarOf(t, tar.Header{Typeflag: tar.TypeDir, Name: "out/", Mode: 0o777}), connect.CodeInvalidArgument},
		"devices":                 {tarOf(t, tar.Header{Typeflag: tar.TypeBlock, Name: "dev", Devmajor: 8}, tar.Header{Typeflag: tar.TypeFifo, Name: "p"}), 0},
		"a file over a folder":    {tarOf(t, tar.Header{Typeflag: tar.TypeDir, Name: "dir", Mode: 0o755}, reg("dir")), connect.CodeAlreadyExists},
		"no name":                 {tarOf(t, reg("./.")), connect.CodeAlreadyExists},
		"zip dots":                {zipOf(t, "../outside/keep"), connect.CodeInvalidArgument},
		"zip absolute":            {zipOf(t, r.dir+"/outside/keep"), connect.CodeInvalidArgument},
		"zip through a link":      {zipOf(t, "out/keep"), connect.CodeInvalidArgument},
		"nothing":                 {nil, 0},
		"no archive":              {[]byte(strings.Repeat("no archive", 200)), connect.CodeInvalidArgument},
		"cut tar":                 {tarOf(t, reg("a"))[:514], connect.CodeInvalidArgument},
		"cut zip":                 {zipOf(t, "a")[:30], connect.CodeInvalidArgument},
		"gzip of nothing":         {[]byte{0x1f, 0x8b, 8}, connect.CodeInvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := r.extract(t.Context(), filepath.Join(r.dir, "in"), 0, tt.data)
			if tt.code == 0 && err != nil || tt.code != 0 && connect.CodeOf(err) != tt.code {
				t.Error(err)
			}
			if got := list(t, filepath.Join(r.dir, "outside")); got != "keep" {
				t.Errorf("outside is %s", got)
			}
			for _, kept := range []string{"outside/keep", "in/here"} {
				if data, _ := os.ReadFile(filepath.Join(r.dir, kept)); string(data) != "kept" {
					t.Fatalf("%s is now %q", kept, data)
				}
			}
		})
	}
	if info, err := os.Stat(filepath.Join(r.dir, "outside")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("outside has %v, %v", info.Mode(), err)
	}
}

func FuzzExtract(f *testing.F) {
	f.Add(tarOf(f, tar.Header{Typeflag: tar.TypeReg, Name: "a/b"}, tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: ".."}))
	f.Add(zipOf(f, "a/b", "c"))
	f.Add([]byte{0x1f, 0x8b, 8, 0})
	top := f.TempDir()
	inside := filepath.Join(top, "in")
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.MkdirAll(inside, 0o755); err != nil {
			t.Fatal(err)
		}
		x := &extractor{ctx: t.Context()}
		_ = x.all(&guestv1.ExtractStart{Path: inside}, bytes.NewReader(data))
		names, err := os.ReadDir(top)
		if err != nil || len(names) != 1 || !names[0].IsDir() {
			t.Errorf("above the folder are %v, %v", names, err)
		}
		_ = filepath.WalkDir(inside, func(path string, e fs.DirEntry, _ error) error {
			if e != nil && e.IsDir() {
				_ = os.Chmod(path, 0o755)
			}
			return nil
		})
		if err := os.RemoveAll(inside); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzIgnoreRules(f *testing.F) {
	f.Add("*.log\n!a.log\n/b/\n**/c/**\n[!x]", "a/b/c.log")
	f.Fuzz(func(_ *testing.T, rules, path string) {
		i := &ignores{dir: "/top", rules: parseRules([]byte(rules))}
		i.ignored("/top/"+path, true)
	})
}
