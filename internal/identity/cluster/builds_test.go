package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/builds"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/installation"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/payload"
)

// aBuild is the Manifest of some build.
func aBuild(name string) builds.Manifest {
	m := builds.Manifest{Build: name, Arch: "amd64"}
	for _, part := range payload.Names() {
		m.Programs = append(m.Programs, builds.Program{Name: part, Bytes: 1, SHA256: strings.Repeat("0", 64)})
	}
	return m
}

const buildA, buildB = "00000000000000aa", "00000000000000bb"

// withoutBuildKey makes a cluster one of the version before keys of builds.
func withoutBuildKey(t testing.TB, w *world) {
	t.Helper()
	for _, name := range []string{BuildKeyFile, buildKeyFile} {
		if err := os.Remove(filepath.Join(w.dir, authorityFolder, name)); err != nil {
			t.Fatal(err)
		}
	}
}

func buildKeyOf(t testing.TB, own *installation.Keys) *installation.Key {
	t.Helper()
	return must(own.BuildKey())(t)
}

// A node that joins learns which key signs builds, and gets the signatures.
func TestInitMakesABuildKey(t *testing.T) {
	w := found(t, 0)
	info, err := os.Stat(filepath.Join(w.dir, authorityFolder, BuildKeyFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key of builds: %v, %v", info, err)
	}
	node, own := w.joinHost(t, "n")
	stated := must(w.BuildKey())(t)
	if got := buildKeyOf(t, own); got == nil || *got != stated.Key {
		t.Fatalf("the node knows %v, stated is %+v", got, stated)
	}
	text, err := os.ReadFile(filepath.Join(w.dir, authorityFolder, BuildKeyFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range append([]string{node.dir}, w.bundles[0].Folder, w.bundles[1].Folder, w.bundles[2].Folder) {
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%v, %v", files, err)
		}
		for _, path := range files {
			if raw, err := os.ReadFile(path); err != nil || strings.Contains(string(raw), string(text)) {
				t.Errorf("%s has the private key of builds: %v", path, err)
			}
		}
	}

	if raw, err := node.BuildSignature(t.Context(), buildA); err == nil || !strings.Contains(err.Error(), "was not signed here") {
		t.Errorf("an unsigned build: %s, %v", raw, err)
	}
	if raw, err := node.BuildSignature(t.Context(), "..%2fca"); err == nil || !strings.Contains(err.Error(), "not the name of a build") {
		t.Errorf("a path: %s, %v", raw, err)
	}
	must(w.SignBuilds([]builds.Manifest{aBuild(buildA)}, ""))(t)
	raw := must(node.BuildSignature(t.Context(), buildA))(t)
	if m, err := builds.Open(raw, buildA, stated.Key); err != nil || m.Build != buildA {
		t.Errorf("%+v, %v", m, err)
	}
}

// A cluster of an earlier version asks for no signatures until its first build is signed.
// Then running nodes learn of the key.
func TestFirstSignatureMakesAKey(t *testing.T) {
	w := found(t, 0)
	withoutBuildKey(t, w)
	node, own := w.joinHost(t, "n")
	k := keeper{Identity: node}
	k.look(t.Context(), time.Now())
	if got := node.BuildKey(); got != nil || buildKeyOf(t, own) != nil {
		t.Errorf("there is a key: %s", got)
	}
	if _, err := w.SignBuilds([]builds.Manifest{aBuild(buildA), {Build: "x"}}, ""); err == nil {
		t.Error("signed a folder without a build")
	}
	if got := must(w.BuildKey())(t); got != nil {
		t.Errorf("a failed signature makes nodes ask for signatures by %s", got.Key)
	}
	must(w.SignBuilds([]builds.Manifest{aBuild(buildA), aBuild(buildB)}, ""))(t)
	k.look(t.Context(), time.Now().Add(crlEvery))
	stated := must(w.BuildKey())(t)
	if got := node.BuildKey(); stated == nil || !strings.Contains(string(got), stated.Key.String()) {
		t.Errorf("the node has %s, stated is %+v", got, stated)
	}
	if err := own.UpdateBuildKey(*stated); err != nil || *buildKeyOf(t, own) != stated.Key {
		t.Errorf("the sentry host does not take it: %v", err)
	}
	all := must(w.SignedBuilds())(t)
	if len(all) != 2 || all[0].Build != buildA || all[1].Build != buildB {
		t.Errorf("signed are %+v", all)
	}
}

func TestSignBuildsWithAKeyElsewhere(t *testing.T) {
	w, other := found(t, 0), found(t, 0)
	one := []builds.Manifest{aBuild(buildA)}
	if _, err := w.SignBuilds(one, filepath.Join(other.dir, authorityFolder, BuildKeyFile)); err == nil || !strings.Contains(err.Error(), "of another cluster, or its key was replaced") {
		t.Errorf("the key of another cluster: %v", err)
	}
	away := filepath.Join(t.TempDir(), "build.key")
	if err := os.Rename(filepath.Join(w.dir, authorityFolder, BuildKeyFile), away); err != nil {
		t.Fatal(err)
	}
	if _, err := w.SignBuilds(one, ""); err == nil || !strings.Contains(err.Error(), "name the file with --key") {
		t.Errorf("without the key: %v", err)
	}
	must(w.SignBuilds(one, away))(t)
	if err := os.Chmod(away, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := w.SignBuilds(one, away); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a key that others may read: %v", err)
	}
}

func TestReplaceBuildKey(t *testing.T) {
	w := found(t, 0)
	_, own := w.joinHost(t, "n")
	first := must(w.BuildKey())(t)
	must(w.SignBuilds([]builds.Manifest{aBuild(buildA), aBuild(buildB)}, ""))(t)
	if all := must(w.ReplaceBuildKey())(t); len(all) != 2 {
		t.Errorf("signed again are %+v", all)
	}
	second := must(w.BuildKey())(t)
	if second.Key == first.Key || second.Number <= first.Number {
		t.Fatalf("%+v after %+v", second, first)
	}
	for _, s := range must(w.SignedBuilds())(t) {
		raw := must(s.Marshal())(t)
		if _, err := builds.Open(raw, s.Build, second.Key); err != nil {
			t.Error(err)
		}
	}
	if err := own.UpdateBuildKey(*second); err != nil || *buildKeyOf(t, own) != second.Key {
		t.Errorf("the new key: %v", err)
	}
	if err := own.UpdateBuildKey(*first); err == nil || *buildKeyOf(t, own) != second.Key {
		t.Errorf("the old statement takes the key back: %v", err)
	}
}

// An authority that was restored from a backup has forgotten its last keys. Nodes take its
// next key all the same.
func TestReplaceBuildKeyAfterARestore(t *testing.T) {
	w := found(t, 0)
	_, own := w.joinHost(t, "n")
	folder := filepath.Join(w.dir, authorityFolder)
	backup := filepath.Join(t.TempDir(), "backup")
	if err := os.CopyFS(backup, os.DirFS(folder)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		must(w.ReplaceBuildKey())(t)
	}
	lost := must(w.BuildKey())(t)
	if err := own.UpdateBuildKey(*lost); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.RemoveAll(folder), os.CopyFS(folder, os.DirFS(backup))); err != nil {
		t.Fatal(err)
	}
	restored := must(w.BuildKey())(t)
	if err := own.UpdateBuildKey(*restored); err == nil || !strings.Contains(err.Error(), "build-key --replace") {
		t.Errorf("the restored key: %v", err)
	}
	time.Sleep(time.Until(time.Unix(lost.Number+1, 0))) // numbers are seconds
	must(w.ReplaceBuildKey())(t)
	next := must(w.BuildKey())(t)
	if err := own.UpdateBuildKey(*next); err != nil || *buildKeyOf(t, own) != next.Key {
		t.Errorf("the key after a restore: %v", err)
	}
}
