package dockerfile

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// packedOf is a context of entries: "name/" is a folder, "name=text" a file, "name>to" a
// link, "name#to" a hard link.
func packedOf(t *testing.T, at time.Time, entries ...string) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e, Mode: 0o755, Typeflag: tar.TypeDir, ModTime: at}
		text := ""
		if name, rest, ok := strings.Cut(e, "="); ok {
			h.Name, text, h.Typeflag, h.Mode, h.Size = name, rest, tar.TypeReg, 0o644, int64(len(rest))
		} else if name, rest, ok := strings.Cut(e, ">"); ok {
			h.Name, h.Linkname, h.Typeflag = name, rest, tar.TypeSymlink
		} else if name, rest, ok := strings.Cut(e, "#"); ok {
			h.Name, h.Linkname, h.Typeflag = name, rest, tar.TypeLink
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(w, text)
	}
	_ = w.Close()
	return &b
}

func contextOf(t *testing.T, archive io.Reader) (*Context, error) {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return ReadContext(archive, f, 1<<20)
}

// COPY finds the files that it names, without ignored ones. Links stay inside.
func TestFind(t *testing.T) {
	c, err := contextOf(t, packedOf(t, time.Unix(1, 0), ".dockerignore=# all but\n*.log\nsecret\n!keep.log\nnode_modules\n", "./", "./a.txt=A", "b.txt=B", "keep.log=k", "x.log=x",
		"secret/key=s", "src/main.py=m", "src/sub/deep.py=d", "src-2/z=z", "node_modules/p/q=q", "to-src>src", "file>src/main.py", "src/up>../a.txt",
		"out>../../etc/passwd", "abs>/etc/passwd", "loop>loop", "hard#a.txt", "empty/"))
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		sources []string
		dest    string
		want    []string
		single  bool
	}{
		"a file":               {[]string{"a.txt"}, "/x", []string{"a.txt"}, true},
		"from the root":        {[]string{"/a.txt"}, "/x", []string{"a.txt"}, true},
		"files":                {[]string{"a.txt", "b.txt"}, "/x/", []string{"a.txt", "b.txt"}, false},
		"a pattern":            {[]string{"*.txt"}, "/x/", []string{"a.txt", "b.txt"}, false},
		"a pattern of one":     {[]string{"b*.txt"}, "/x", []string{"b.txt"}, true},
		"a folder":             {[]string{"src"}, "/x", []string{"main.py", "sub", "sub/deep.py", "up"}, false},
		"a folder of a file":   {[]string{"src-2/"}, "/x", []string{"z"}, false},
		"an empty folder":      {[]string{"empty"}, "/x", nil, false},
		"folders":              {[]string{"src", "src-2"}, "/x/", []string{"main.py", "sub", "sub/deep.py", "up", "z"}, false},
		"an exception":         {[]string{"*.log"}, "/x", []string{"keep.log"}, true},
		"a link to a folder":   {[]string{"to-src/sub"}, "/x", []string{"deep.py"}, false},
		"a link to a file":     {[]string{"file"}, "/x", []string{"main.py"}, true},
		"a link up":            {[]string{"src/up"}, "/x", []string{"a.txt"}, true},
		"a hard link":          {[]string{"hard"}, "/x", []string{"hard"}, true},
		"a pattern of folders": {[]string{"src*"}, "/x/", []string{"main.py", "sub", "sub/deep.py", "up", "z"}, false},
	} {
		f, err := c.Find(t.Context(), Step{Sources: tt.sources, Dest: tt.dest})
		if err != nil || !slices.Equal(names(f), tt.want) || f.Single != tt.single {
			t.Errorf("%s: %+v, %v", name, f, err)
		}
	}
	if f, err := c.Find(t.Context(), Step{Sources: []string{"."}, Dest: "/x/"}); err != nil || slices.ContainsFunc(names(f), func(n string) bool {
		return strings.HasPrefix(n, "secret") || strings.HasPrefix(n, "node_modules") || n == "x.log"
	}) {
		t.Errorf("everything: %+v, %v", f, err)
	}
	for source, says := range map[string]string{
		"none": "it is not in the build context", "secret/key": ".dockerignore leaves it out", "x.log": ".dockerignore leaves it out", "*.none": "matches nothing",
		"out": "leads out", "abs": "leads out", "loop": "leads out", "a.txt/b": "not in the build context", "../x": "leads out", "[": "not a pattern",
	} {
		if _, err := c.Find(t.Context(), Step{Line: 7, Sources: []string{source}, Dest: "/x"}); !errors.Is(err, sandbox.Invalid) || !strings.Contains(fmt.Sprint(err), says) || !strings.Contains(err.Error(), "line 7") {
			t.Errorf("%s: %v, want %s", source, err, says)
		}
	}
	if _, err := c.Find(t.Context(), Step{Sources: []string{"*.txt"}, Dest: "/x"}); !errors.Is(err, sandbox.Invalid) {
		t.Errorf("several to a file: %v", err)
	}
}

// Files are named by what they are, whenever they were made, and packed as such.
func TestFiles(t *testing.T) {
	hash := func(dest string, at int64, entries ...string) string {
		c, err := contextOf(t, packedOf(t, time.Unix(at, 0), entries...))
		if err != nil {
			t.Fatal(err)
		}
		f, err := c.Find(t.Context(), Step{Sources: []string{"src"}, Inline: []Inline{{"in", "text"}}, Dest: dest})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		n, err := f.WriteTo(&out)
		if err != nil || n != int64(out.Len()) {
			t.Fatal(n, err)
		}
		all := ""
		for in := tar.NewReader(&out); ; {
			h, err := in.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(in)
			all += fmt.Sprintf("%s %o %s %s;", h.Name, h.Mode, h.Linkname, body)
		}
		if want := "a 644  A;in 644  text;l 755 a ;s/ 755  ;"; len(entries) == 4 && entries[1] == "src/a=A" && all != want {
			t.Errorf("packed %q, want %q", all, want)
		}
		return f.Hash
	}
	first := hash("/x/", 1, "src/", "src/a=A", "src/l>a", "src/s/")
	if again := hash("/x/", 2, "src/", "src/a=A", "src/l>a", "src/s/"); again != first {
		t.Error("another time is another hash")
	}
	for _, other := range [][]string{{"src/a=B", "src/l>a", "src/s/"}, {"src/b=A", "src/l>a", "src/s/"}, {"src/a=A", "src/l>b", "src/s/"}, {"src/a=A", "src/l>a"}} {
		if hash("/x/", 1, other...) == first {
			t.Errorf("%v has the same hash", other)
		}
	}
}

func TestReadContextRefuses(t *testing.T) {
	var many []string
	for i := range 300 {
		many = append(many, fmt.Sprintf("a/b/c/d/e/f/g/%d=", i))
	}
	for name, tt := range map[string]struct {
		archive io.Reader
		code    sandbox.Code
		says    string
	}{
		"no archive":       {strings.NewReader("not a tar"), sandbox.Invalid, "not a whole tar"},
		"cut off":          {bytes.NewReader(packedOf(t, time.Unix(1, 0), "a="+strings.Repeat("x", 5000)).Bytes()[:2000]), sandbox.Invalid, "not a whole tar"},
		"out":              {packedOf(t, time.Unix(1, 0), "../a=x"), sandbox.Invalid, "leads out"},
		"a link to none":   {packedOf(t, time.Unix(1, 0), "a#b"), sandbox.Invalid, "link to nothing"},
		"a link out":       {packedOf(t, time.Unix(1, 0), "a#../../etc/passwd"), sandbox.Invalid, "link to nothing"},
		"too large":        {packedOf(t, time.Unix(1, 0), "a="+strings.Repeat("x", 1<<20+1)), sandbox.TooLarge, "at most"},
		"many patterns":    {packedOf(t, time.Unix(1, 0), append(many, ".dockerignore="+strings.Repeat("a*b\n", 250_000))...), sandbox.TooLarge, "too many patterns"},
		"a bad ignorefile": {packedOf(t, time.Unix(1, 0), ".dockerignore=a[\n"), sandbox.Invalid, "bad pattern"},
	} {
		if _, err := contextOf(t, tt.archive); !errors.Is(err, tt.code) || !strings.Contains(fmt.Sprint(err), tt.says) {
			t.Errorf("%s: %v, want %s with %s", name, err, tt.code, tt.says)
		}
	}
}
