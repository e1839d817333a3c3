package server

import (
	"bytes"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// certificates are PEM of certificates whose content nobody looks at.
func certificates(names ...string) string {
	var out strings.Builder
	for _, name := range names {
		_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: []byte(name)})
	}
	return out.String()
}

func aliases(entries []jksEntry) (all []string) {
	for _, e := range entries {
		all = append(all, e.alias+"="+string(e.certificate))
	}
	return all
}

// Ours come beside those that a store has, in place of our earlier ones, and what is
// in another format stays as it is.
func TestTrustInJava(t *testing.T) {
	root := t.TempDir()
	debian := filepath.Join(root, "etc/ssl/certs/java/cacerts")
	linked := filepath.Join(root, "usr/lib/jvm/java-17/lib/security/cacerts")
	other := filepath.Join(root, "opt/java/openjdk/lib/security/cacerts")
	for _, path := range []string{debian, linked, other} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	known := formatJKS([]jksEntry{{alias: "known", date: 7, certificate: []byte("k")}})
	for path, content := range map[string][]byte{debian: known, other: []byte("another format")} {
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(debian, linked); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ authority, want string }{
		{certificates("a", "b"), "known=k cloud-sandbox-1=a cloud-sandbox-2=b"},
		{certificates("c"), "known=k cloud-sandbox-1=c"},
	} {
		if err := trustInJava(root, tt.authority); err != nil {
			t.Fatal(err)
		}
		store, err := os.ReadFile(linked)
		if err != nil {
			t.Fatal(err)
		}
		entries, err := parseJKS(store)
		if got := strings.Join(aliases(entries), " "); err != nil || got != tt.want {
			t.Errorf("the store holds %s, %v, want %s", got, err, tt.want)
		}
	}
	if left, err := os.ReadFile(other); err != nil || string(left) != "another format" {
		t.Errorf("another format became %q, %v", left, err)
	}
}

// Java's own tool reads what we write.
func TestJavaReadsOurStore(t *testing.T) {
	tools, err := filepath.Glob("/usr/lib/jvm/*/bin/keytool")
	if err != nil || len(tools) == 0 {
		t.Skip("there is no keytool")
	}
	bundle, err := os.ReadFile(systemBundle)
	block, _ := pem.Decode(bundle)
	if err != nil || block == nil {
		t.Skipf("this machine trusts nobody: %v", err)
	}
	store := filepath.Join(t.TempDir(), "cacerts")
	content := withCertificates(nil, string(pem.EncodeToMemory(block)))
	if err := os.WriteFile(store, content, 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(tools[0], "-list", "-keystore", store, "-storepass", jksPassword).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("cloud-sandbox-1, ")) || !bytes.Contains(out, []byte("trustedCertEntry")) {
		t.Errorf("%v: %s", err, out)
	}
}

func FuzzParseJKS(f *testing.F) {
	f.Add(formatJKS([]jksEntry{{alias: "a", certificate: []byte("b")}}))
	f.Fuzz(func(t *testing.T, store []byte) {
		entries, err := parseJKS(store)
		if err != nil {
			return
		}
		if again, err := parseJKS(formatJKS(entries)); err != nil || strings.Join(aliases(again), " ") != strings.Join(aliases(entries), " ") {
			t.Errorf("%q is read as %q, %v", aliases(entries), aliases(again), err)
		}
	})
}
