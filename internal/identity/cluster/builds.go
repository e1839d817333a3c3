package cluster

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/durable"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/builds"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/installation"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
)

// The operator signs each build that nodes may start, with a key beside the CA's. The
// authority states which key that is, signed like the certificates of sentry hosts. A node
// gets the statement when it joins, and later from the process that answers joins, which
// also has the signatures. A cluster that never had such a key asks for no signatures.

const (
	// BuildKeyFile is the private key, in the folder of an authority.
	BuildKeyFile = "build.key"
	// buildKeyFile is the authority's statement, in the folders of the authority and of
	// identities.
	buildKeyFile = "build-key.json"
	// buildsFolder has the signatures, by build, in the folder of an authority.
	buildsFolder = "builds"
)

// BuildKey returns the statement of which key signs builds; nil: none does.
func (a *Authority) BuildKey() (*installation.BuildKey, error) {
	raw, err := readBounded(filepath.Join(a.dir, buildKeyFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	b := new(installation.BuildKey)
	if err := errors.Join(err, json.Unmarshal(raw, b)); err != nil {
		return nil, fmt.Errorf("%s: %w", buildKeyFile, err)
	}
	return b, nil
}

// keyFile is the file with the private key of builds, unless the operator keeps it elsewhere.
func (a *Authority) keyFile() string { return filepath.Join(a.dir, BuildKeyFile) }

// SignBuilds signs builds and records the signatures, which nodes ask for. keyFile holds the
// private key; empty: it is beside the CA's. The first call for a cluster that has no key
// yet makes one: nodes learn of it after the signatures are recorded.
func (a *Authority) SignBuilds(all []builds.Manifest, keyFile string) ([]builds.Signed, error) {
	stated, err := a.BuildKey()
	if err != nil {
		return nil, err
	}
	if keyFile == "" {
		keyFile = a.keyFile()
		if stated == nil {
			err = a.makeBuildKey()
		}
	}
	if err != nil {
		return nil, err
	}
	key, err := builds.ReadKey(keyFile)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: name the file with --key, or make another key with `cloud-sandbox cluster build-key --replace`", err)
	}
	if err != nil {
		return nil, err
	}
	if stated != nil && builds.PublicOf(key) != stated.Key {
		return nil, fmt.Errorf("the builds of the cluster %[2]s are signed by another key than the key in %[1]s, by %[3]s: the file is of another cluster, or its key was replaced; name the right file with --key, or make another key with `cloud-sandbox cluster build-key --replace`", keyFile, a.Cluster(), stated.Key)
	}
	var out []builds.Signed
	for _, m := range all {
		signed, err := builds.Sign(m, key)
		if err == nil {
			err = a.recordBuild(signed)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, signed)
	}
	if stated == nil {
		return out, a.stateBuildKey(key, nil)
	}
	return out, nil
}

// makeBuildKey makes the private key unless it exists.
func (a *Authority) makeBuildKey() error {
	if _, err := os.Lstat(a.keyFile()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_, text, err := builds.NewKey()
	if err == nil {
		err = durable.Write(a.keyFile(), text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("make the key of builds: %w", err)
	}
	return nil
}

// stateBuildKey states which key signs builds, after the last statement. The number of the
// statement is a time, so that an authority that was restored from a backup does not use
// numbers again which nodes have seen.
func (a *Authority) stateBuildKey(key ed25519.PrivateKey, last *installation.BuildKey) error {
	number := time.Now().Unix()
	if last != nil {
		number = max(number, last.Number+1)
	}
	b, err := a.certifiesHosts().CertifyBuildKey(a.Cluster(), number, builds.PublicOf(key))
	var raw []byte
	if err == nil {
		raw, err = json.Marshal(b)
	}
	if err == nil {
		err = durable.Write(filepath.Join(a.dir, buildKeyFile), append(raw, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("state the key of builds: %w", err)
	}
	return nil
}

// ReplaceBuildKey makes a new key of builds beside the CA's, for a key that was lost or
// stolen. It signs all recorded builds again and returns them. Nodes refuse the old key's
// signatures once they have the new key. After a crash in between, replace it again.
func (a *Authority) ReplaceBuildKey() ([]builds.Signed, error) {
	last, err := a.BuildKey()
	if err != nil {
		return nil, err
	}
	all, err := a.SignedBuilds()
	if err != nil {
		return nil, err
	}
	key, text, err := builds.NewKey()
	if err == nil {
		err = durable.Write(a.keyFile(), text, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("make the key of builds: %w", err)
	}
	for i, s := range all {
		if all[i], err = builds.Sign(s.Manifest, key); err != nil {
			return nil, err
		}
		if err := a.recordBuild(all[i]); err != nil {
			return nil, err
		}
	}
	return all, a.stateBuildKey(key, last)
}

func (a *Authority) recordBuild(s builds.Signed) error {
	raw, err := s.Marshal()
	if err == nil {
		err = os.MkdirAll(filepath.Join(a.dir, buildsFolder), 0o700)
	}
	if err == nil {
		err = durable.Write(a.record(buildsFolder, s.Build), raw, 0o600)
	}
	if err != nil {
		return fmt.Errorf("record the signature of build %s: %w", s.Build, err)
	}
	return nil
}

// SignedBuilds returns the builds that were signed, by name.
func (a *Authority) SignedBuilds() ([]builds.Signed, error) {
	files, err := readRecords[builds.Signed](filepath.Join(a.dir, buildsFolder))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	all := make([]builds.Signed, 0, len(files))
	for _, s := range files {
		all = append(all, s)
	}
	slices.SortFunc(all, func(x, y builds.Signed) int { return strings.Compare(x.Build, y.Build) })
	return all, err
}

// buildKey answers with the statement of the key of builds. A cluster without one answers
// as an authority that does not know the path.
func (j *Joins) buildKey(w http.ResponseWriter, r *http.Request) {
	b, err := j.authority.BuildKey()
	switch {
	case err != nil:
		j.fail(w, "reading the key of builds failed", err)
	case b == nil:
		http.NotFound(w, r)
	default:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(b) // the client may be gone
	}
}

// signedBuild answers with the signature of a build.
func (j *Joins) signedBuild(w http.ResponseWriter, r *http.Request) {
	build := r.PathValue("build")
	if !sentryhost.ValidBuild(build) {
		refuse(w, "that is not the name of a build")
		return
	}
	raw, err := readBounded(j.authority.record(buildsFolder, build))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		refuse(w, fmt.Sprintf("build %s was not signed here", build))
	case err != nil:
		j.fail(w, "reading the signature of a build failed", err)
	default:
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(raw) // the client may be gone
	}
}

// buildKeyNotice is the key of builds, as nodes keep it. An earlier version of the authority,
// or one without such a key, does not serve it.
var buildKeyNotice = notice{path: buildKeyPath, file: buildKeyFile, what: "the key of builds"}

// BuildKey returns the last statement of the key of builds, an installation.BuildKey as
// JSON; nil: none was fetched yet. It is verified by the sentry host, which alone knows the
// authority's key.
func (i *Identity) BuildKey() []byte { return i.noticed(buildKeyNotice) }

// BuildSignature returns the signature of a build from the authority, an unverified
// builds.Signed as JSON.
func (i *Identity) BuildSignature(ctx context.Context, build string) ([]byte, error) {
	p := i.Current()
	if p.renewAt == "" {
		return nil, errors.New("the identity has no address of the cluster's CA: join again")
	}
	return ask(ctx, p.renewAt, http.MethodGet, buildsPath+build, p.authorityConfig(), nil)
}
