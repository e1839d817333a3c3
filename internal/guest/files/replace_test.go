package files

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"

	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
)

func TestReplace(t *testing.T) {
	r := newRig(t)
	one, none := int64(1), int64(0)
	for _, tt := range []struct {
		name  string
		m     *guestv1.ReplaceRequest
		code  connect.Code // 0: none
		count int64
		want  string // of a.py, b.py and sub/c.txt
	}{
		{"literal", &guestv1.ReplaceRequest{Pattern: "f(x)", Replacement: "$1"}, 0, 3, "$1\ny\n|a $1 b $1|g"},
		{"dry", &guestv1.ReplaceRequest{Pattern: "f(x)", Replacement: "h", DryRun: true}, 0, 3, "f(x)\ny\n|a f(x) b f(x)|g"},
		{"regex", &guestv1.ReplaceRequest{Pattern: `f\((\w)\)`, Replacement: "${1}.f", Regex: true}, 0, 3, "x.f\ny\n|a x.f b x.f|g"},
		{"over lines", &guestv1.ReplaceRequest{Pattern: "f(x)\ny", Replacement: "z"}, 0, 1, "z\n|a f(x) b f(x)|g"},
		{"line anchors", &guestv1.ReplaceRequest{Pattern: "^y$", Replacement: "z", Regex: true}, 0, 1, "f(x)\nz\n|a f(x) b f(x)|g"},
		{"case", &guestv1.ReplaceRequest{Pattern: "G", Replacement: "h", IgnoreCase: true}, 0, 1, "f(x)\ny\n|a f(x) b f(x)|h"},
		{"globs", &guestv1.ReplaceRequest{Files: &guestv1.FileSelection{Globs: []string{"a*"}}, Pattern: "f(x)", Replacement: "h"}, 0, 1, "h\ny\n|a f(x) b f(x)|g"},
		{"one file by a link", &guestv1.ReplaceRequest{Files: &guestv1.FileSelection{Path: "link"}, Pattern: "f(x)", Replacement: "h", ExpectedCount: &one}, 0, 1, "h\ny\n|a f(x) b f(x)|g"},
		{"not as often", &guestv1.ReplaceRequest{Pattern: "f(x)", Replacement: "h", ExpectedCount: &one}, connect.CodeAlreadyExists, 0, "f(x)\ny\n|a f(x) b f(x)|g"},
		{"never, as expected", &guestv1.ReplaceRequest{Pattern: "nothing", Replacement: "h", ExpectedCount: &none}, 0, 0, "f(x)\ny\n|a f(x) b f(x)|g"},
		{"removed", &guestv1.ReplaceRequest{Pattern: " f(x)"}, 0, 2, "f(x)\ny\n|a b|g"},
		{"no pattern", &guestv1.ReplaceRequest{}, connect.CodeInvalidArgument, 0, "f(x)\ny\n|a f(x) b f(x)|g"},
		{"no expression", &guestv1.ReplaceRequest{Pattern: "(", Regex: true}, connect.CodeInvalidArgument, 0, "f(x)\ny\n|a f(x) b f(x)|g"},
		{"nowhere", &guestv1.ReplaceRequest{Files: &guestv1.FileSelection{Path: "none"}, Pattern: "x"}, connect.CodeNotFound, 0, "f(x)\ny\n|a f(x) b f(x)|g"},
		{"another's", &guestv1.ReplaceRequest{Files: &guestv1.FileSelection{Path: "locked"}, Pattern: "x"}, connect.CodePermissionDenied, 0, "f(x)\ny\n|a f(x) b f(x)|g"},
		{"far too much", &guestv1.ReplaceRequest{Files: &guestv1.FileSelection{Path: "a.py"}, Pattern: "(?s).*", Replacement: strings.Repeat("$0", 1<<19) + strings.Repeat("x", maxReplaced), Regex: true}, connect.CodeResourceExhausted, 0, "f(x)\ny\n|a f(x) b f(x)|g"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, name := range []string{"a.py", "link"} {
				os.Remove(filepath.Join(r.dir, name))
			}
			r.tree(t, map[string]string{"a.py": "f(x)\ny\n", "b.py": "a f(x) b f(x)", "sub/c.txt": "g", "bin": "f(x)\x00", "link": "->a.py", ".hidden": "f(x)"})
			os.Chmod(filepath.Join(r.dir, "a.py"), 0o751)
			os.WriteFile(filepath.Join(r.dir, "locked"), []byte("x"), 0o600)
			if tt.m.Files == nil {
				tt.m.Files = &guestv1.FileSelection{}
			}
			tt.m.Files.Path = filepath.Join(r.dir, tt.m.Files.Path)
			got, err := r.Replace(t.Context(), connect.NewRequest(tt.m))
			switch {
			case tt.code != 0:
				if connect.CodeOf(err) != tt.code {
					t.Error(err)
				}
			case err != nil || got.Msg.Count != tt.count:
				t.Errorf("replaced %v, %v", got, err)
			}
			var all []string
			for _, name := range []string{"a.py", "b.py", "sub/c.txt"} {
				data, _ := os.ReadFile(filepath.Join(r.dir, name))
				all = append(all, string(data))
			}
			if s := strings.Join(all, "|"); s != tt.want {
				t.Errorf("afterwards %q, want %q", s, tt.want)
			}
			if info, err := os.Lstat(filepath.Join(r.dir, "a.py")); err != nil || info.Mode() != 0o751 {
				t.Errorf("mode %v, %v", info, err)
			}
		})
	}
}

func TestReplaceTellsLines(t *testing.T) {
	r := newRig(t)
	r.tree(t, map[string]string{"f": "a\nb a\n\na" + strings.Repeat("\na", 200), "big": strings.Repeat("a", maxReplaceFile+1)})
	req := &guestv1.ReplaceRequest{Files: &guestv1.FileSelection{Path: r.dir}, Pattern: "a", Replacement: "c"}
	got, err := r.Replace(t.Context(), connect.NewRequest(req))
	if err != nil || len(got.Msg.Files) != 1 || got.Msg.TooLarge != 1 {
		t.Fatalf("replaced %v, %v", got, err)
	}
	f := got.Msg.Files[0]
	if s := fmt.Sprint(f.Count, len(f.Lines), f.Lines[:5]); s != "203 100 [1 2 4 5 6]" {
		t.Errorf("told %s", s)
	}
}
