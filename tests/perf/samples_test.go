package perf

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseSamples(t *testing.T) {
	const printed = `cloud-sandbox  2655/2656  [001]  2232.781407820: 
	ffffffff8158c3e1 do_fault ([kernel.kallsyms])
	           84741 [unknown] (/srv/lib/cloud-sandbox)

kworker/u8:1-ne     0/0   [000]   12.000000001: 
a b c   7/8  [010]   1.500000000: 
	 1 [unknown] (/memfd:runsc-memory (deleted))
`
	var got []sample
	if err := parseSamples(strings.NewReader(printed), func(s sample) { got = append(got, s) }); err != nil {
		t.Fatal(err)
	}
	want := []sample{
		{comm: "cloud-sandbox", pid: 2655, tid: 2656, cpu: 1, at: 2232781407820, stack: []frame{
			{address: 0xffffffff8158c3e1, symbol: "do_fault", file: "[kernel.kallsyms]"}, {address: 0x84741, file: "/srv/lib/cloud-sandbox"},
		}},
		{comm: "kworker/u8:1-ne", at: 12000000001},
		{comm: "a b c", pid: 7, tid: 8, cpu: 10, at: 1500000000, stack: []frame{{address: 1, file: "/memfd:runsc-memory (deleted)"}}},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(sample{}, frame{})); diff != "" {
		t.Error(diff)
	}
}

func TestRoleOf(t *testing.T) {
	const data = "/srv/data"
	for _, tt := range []struct {
		line string
		want string
	}{
		{"/srv/data/lib/cloud-sandbox serve --dev --data /srv/data", roleServer},
		{"bin/cloud-sandbox serve --dev --data /srv/data", roleLauncher},
		{"bin/cloud-sandbox serve --dev --data /srv/other", roleOther},
		{"/srv/data/lib/a1/gvisor_sentry host --socket /srv/data/run/s", roleHost},
		{"runsc-sandbox --root=/srv/data/hosts/a1 boot", roleSentry},
		{"/srv/data/lib/a1/link --listen-fd 3", roleLink},
		{"make test", roleOther},
	} {
		if got := roleOf(1000, 1, tt.line, data); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.line, got, tt.want)
		}
	}
	if got := roleOf(50, 2, "", data); got != roleKernel {
		t.Errorf("a kernel thread is %s", got)
	}
}

func TestShorten(t *testing.T) {
	for name, want := range map[string]string{
		"github.com/cloud-sandbox/cloud-sandbox/internal/gateway.(*Server).ServeHTTP": "gateway.(*Server).ServeHTTP",
		"main.main": "main.main",
		"gvisor.dev/gvisor/pkg/sync.(*Map[go.shape.*uint8,a/b.C]).Load": "sync.(*Map[…]).Load",
	} {
		if got := shorten(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// Functions of a Go program without symbols are resolved by offsets in its file.
func TestSymbolsOfStrippedProgram(t *testing.T) {
	file := filepath.Join(t.TempDir(), "program")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-s -w", "-o", file, "./testdata/program").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	p, err := openProgram(file)
	if err != nil {
		t.Fatal(err)
	}
	fn := p.table.LookupFunc("main.main")
	if fn == nil {
		t.Fatal("the program has no main")
	}
	names := newSymbols().resolve([]frame{
		{address: fn.Entry - p.shift, file: file},
		{address: 1, symbol: "do_fault", file: "[kernel.kallsyms]"},
		{address: 1, file: "/srv/images/base.erofs"},
		{address: 1, file: "/memfd:runsc-memory (deleted)"},
		{address: 1, file: "[unknown]"},
	})
	if want := []string{"main.main", "do_fault [kernel]", "programs of the template", "memory of the sandbox"}; !cmp.Equal(names, want) {
		t.Errorf("names are %q, want %q", names, want)
	}
}

// A recording by perf on this machine can be parsed. The test is skipped if perf cannot
// record.
func TestRecordThisMachine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "perf.data")
	w := window{began: now()}
	out, err := exec.CommandContext(t.Context(), "perf", "record", "--quiet", "-a", "-k", "CLOCK_MONOTONIC", "-e", "sched:sched_switch", "-o", file,
		"--", "bash", "-c", "for i in 1 2 3; do /bin/true; done").CombinedOutput()
	if err != nil {
		t.Skipf("perf record: %v: %s", err, out)
	}
	w.ended = now()
	line, err := timelineOf(context.Background(), file, w, roles{})
	if err != nil {
		t.Fatal(err)
	}
	if line.MS <= 0 || line.Cores == 0 {
		t.Errorf("the timeline is %+v", line)
	}
	for _, l := range line.Lanes {
		for _, s := range l.Slices {
			if s[0] < 0 || s[1] <= s[0] || s[1] > line.MS*1000+10 {
				t.Fatalf("%s ran from %v to %v of %v ms", l.Name, s[0], s[1], line.MS)
			}
		}
	}
}
