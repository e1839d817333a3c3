package server

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What this test itself listens on is found, with its process.
func TestListeners(t *testing.T) {
	var want []netip.AddrPort
	for _, address := range []string{"127.0.0.1:0", "0.0.0.0:0"} {
		l, err := net.Listen("tcp4", address)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		want = append(want, l.Addr().(*net.TCPAddr).AddrPort())
	}
	all, _, err := listeners("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range want {
		found := false
		for _, l := range all {
			if l.at == netip.AddrPortFrom(at.Addr().Unmap(), at.Port()) {
				found = true
				if l.pid != os.Getpid() || l.name == "" {
					t.Errorf("%v is of process %d, %q; want %d", at, l.pid, l.name, os.Getpid())
				}
			}
		}
		if !found {
			t.Errorf("%v is not told", at)
		}
	}
}

// Tables are read whole but for what listens beyond the bound.
func TestListenersAreBounded(t *testing.T) {
	const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	proc := t.TempDir()
	if err := os.MkdirAll(filepath.Join(proc, "net"), 0o700); err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	table.WriteString(head)
	for i := range maxListeners + 1 {
		fmt.Fprintf(&table, "   %d: 0100007F:%04X 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 %d\n", i, i+1, i)
	}
	if err := os.WriteFile(filepath.Join(proc, "net", "tcp"), []byte(table.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	all, truncated, err := listeners(proc)
	if err != nil || len(all) != maxListeners || !truncated {
		t.Errorf("%d listen, truncated %v, %v", len(all), truncated, err)
	}
	if all[0].at != netip.MustParseAddrPort("127.0.0.1:1") || all[0].pid != 0 {
		t.Errorf("the first is %+v", all[0])
	}
}

func TestParseListener(t *testing.T) {
	const rest = " 00000000:0000 0A 0:0 00:0 0 1000 0 77"
	for line, want := range map[string]string{
		"0: 0100007F:1F90" + rest:                            "127.0.0.1:8080",
		"0: 00000000:0050" + rest:                            "0.0.0.0:80",
		"0: 00000000000000000000000001000000:1F41" + rest:    "[::1]:8001",
		"0: 00000000000000000000000000000000:1F41" + rest:    "[::]:8001",
		"0: 0100007F:1F90 00000000:0000 01 0:0 00:0 0 0 0 7": "", // is established
		"0: 0100007:1F90" + rest:                             "",
		"0: 0100007F01:1F90" + rest:                          "",
		"0: 0100007F:FFFFF" + rest:                           "",
		"0: 0100007F" + rest:                                 "",
		"sl local_address rem_address st":                    "",
		"":                                                   "",
	} {
		l, ok := parseListener(line)
		if ok != (want != "") || ok && (l.at.String() != want || l.inode != "77") {
			t.Errorf("%q is %v %q, %v; want %q", line, l.at, l.inode, ok, want)
		}
	}
}
