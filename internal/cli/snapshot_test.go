package cli

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

func TestDrawTree(t *testing.T) {
	now := time.Now()
	snap := func(id, parent, name string) v1.Snapshot {
		return v1.Snapshot{ID: id, ParentID: parent, Name: name, CreatedAt: now.Add(-time.Minute), SizeBytes: 1 << 20, Memory: true, Current: id == "s5"}
	}
	for _, tt := range []struct {
		name string
		list []v1.Snapshot
		want []string
	}{
		{"nothing", nil, nil},
		{"a line", []v1.Snapshot{snap("s1", "", "a"), snap("s2", "s1", "")}, []string{"o s1 a", "o s2"}},
		{"branches", []v1.Snapshot{
			snap("s1", "gone", "a"), snap("s2", "s1", ""), snap("s3", "s2", "left"), snap("s4", "s3", ""), snap("s5", "s2", "right"), snap("s6", "s5", ""),
		}, []string{"o s1 a", "o s2", "├─ o s3 left", "│  o s4", "└─ * s5 right", "   o s6"}},
		{"two roots", []v1.Snapshot{snap("s1", "", ""), snap("s2", "", ""), snap("s3", "s1", "")}, []string{"├─ o s1", "│  o s3", "└─ o s2"}},
		{"a hostile name", []v1.Snapshot{snap("s1", "s1", "a\nb\x1b[31m")}, []string{`o s1 a b\x1b[31m`}},
	} {
		var b strings.Builder
		if err := drawTree(&b, tt.list, now); err != nil {
			t.Fatal(err)
		}
		var want []string
		for _, line := range tt.want {
			want = append(want, line+"  1m ago, 1.0 MiB, memory, files\n")
		}
		if diff := cmp.Diff(strings.Join(want, ""), b.String()); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
	}
}

// Of several snapshots, each failure is reported, and the others are processed.
func TestSeveralOfWhichSomeFail(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/fork"):
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, `{"failed":2,"forks":[{"sandbox_id":"i1"},{"error":{"code":"exhausted","message":"no room"}},{"sandbox_id":"i3"},{"error":{"code":"conflict","message":"name taken"}}]}`)
		case strings.Contains(r.URL.Path, "/bad"):
			w.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(w, `{"error":{"code":"conflict","message":"it is odd"}}`)
		default:
			_, _ = io.WriteString(w, `{"sandbox_id":"`+strings.Split(r.URL.Path, "/")[4]+`"}`)
		}
	}))
	defer server.Close()
	for _, tt := range []struct{ args, out, problems, last string }{
		{"fork x -n 4", "i1\ni3\n", "cloud-sandbox: copy 2: no room\n", "copy 4: name taken"},
		{"pause a bad1 b bad2", "a\nb\n", "cloud-sandbox: bad1: it is odd\n", "bad2: it is odd"},
		{"resume bad1 b", "b\n", "", "bad1: it is odd"},
	} {
		out, problems, err := entered(t, "", tt.args+" --url "+server.URL+" --api-key k")
		if err == nil || sentence(err) != tt.last || out != tt.out || problems != tt.problems {
			t.Errorf("%s: %v\nprinted %q\nand %q", tt.args, err, out, problems)
		}
	}
}
