package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"

	"github.com/cloud-sandbox/cloud-sandbox/internal/durable"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/installation"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// The authority also certifies the keys with which the sentry hosts of nodes sign saved
// states, so that each host imports the states that the others saved. Its own key for
// that is in its folder too. Only a join certifies: the token proves that root of that
// machine asks. The certificate of a node would not prove this, because the node's
// server holds it.

// Folders of an authority, with a record for each key of a sentry host.
const (
	hostsFolder        = "hosts"
	revokedHostsFolder = "revoked-hosts"
)

// revokedHostsFile is the list of revoked sentry hosts, in the folder of an identity. It is
// verified by the sentry host, which alone knows the authority's key.
const revokedHostsFile = "revoked-hosts.json"

// hostRequest asks for the certificate of a sentry host's key.
type hostRequest struct {
	Key installation.Key `json:"key"`
	// Proof is the key's signature of hostStatement.
	Proof []byte `json:"proof"`
}

// hostRecord is the record of a certified key.
type hostRecord struct {
	Node string           `json:"node"`
	Key  installation.Key `json:"key"`
}

// hostStatement returns the bytes that a sentry host signs to join. csr is the CSR of the
// same request.
func hostStatement(csr []byte) []byte {
	return append([]byte("cloud-sandbox sentry host joins 1\n"), csr...)
}

// newHostRequest makes the request for our own key.
func newHostRequest(own *installation.Keys, csr []byte) (*hostRequest, error) {
	proof, key, err := own.Sign(hostStatement(csr))
	if err != nil {
		return nil, err
	}
	return &hostRequest{Key: key, Proof: proof}, nil
}

// certifiesHosts are the Keys with which an authority certifies.
func (a *Authority) certifiesHosts() *installation.Keys { return installation.Open(a.dir) }

// certifyHost certifies and records the key of the sentry host of a node.
func (a *Authority) certifyHost(node string, r hostRequest, csr []byte) (installation.Membership, error) {
	if !r.Key.Verify(hostStatement(csr), r.Proof) {
		return installation.Membership{}, refused{errors.New("the request is not signed by the key of the sentry host")}
	}
	name := r.Key.String()
	if _, err := os.Stat(a.record(revokedHostsFolder, name)); err == nil {
		return installation.Membership{}, refused{errors.New("the key of this machine's sentry host is revoked: reinstall the machine, or use another data folder")}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return installation.Membership{}, err
	}
	raw, err := json.Marshal(hostRecord{Node: node, Key: r.Key})
	if err != nil {
		return installation.Membership{}, err
	}
	// The record comes first: a certificate without one could not be revoked.
	err = os.MkdirAll(filepath.Join(a.dir, hostsFolder), 0o700)
	if err == nil {
		err = durable.Write(a.record(hostsFolder, name), raw, 0o600)
	}
	if err != nil {
		return installation.Membership{}, fmt.Errorf("record the key of a sentry host: %w", err)
	}
	return a.certifiesHosts().Certify(a.Cluster(), node, r.Key)
}

// hosts reads the records in a folder, which the first one makes.
func (a *Authority) hosts(folder string) (map[string]hostRecord, error) {
	all, err := readRecords[hostRecord](filepath.Join(a.dir, folder))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return all, err
}

// revokeHosts revokes the keys of the sentry hosts of a node.
func (a *Authority) revokeHosts(node string) error {
	all, err := a.hosts(hostsFolder)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(a.dir, revokedHostsFolder), 0o700); err != nil {
		return err
	}
	for _, h := range all {
		if h.Node != node {
			continue
		}
		err := durable.Rename(a.record(hostsFolder, h.Key.String()), a.record(revokedHostsFolder, h.Key.String()))
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // another process did
			return err
		}
	}
	return nil
}

// RevokedHosts returns the signed list of the revoked sentry hosts, as JSON.
func (a *Authority) RevokedHosts() ([]byte, error) {
	all, err := a.hosts(revokedHostsFolder)
	if err != nil {
		return nil, err
	}
	keys := make([]installation.Key, 0, len(all))
	for _, h := range all {
		keys = append(keys, h.Key)
	}
	slices.SortFunc(keys, func(x, y installation.Key) int { return bytes.Compare(x[:], y[:]) })
	return a.certifiesHosts().Revoke(keys)
}

// revokedHostsNotice is the list of revoked sentry hosts, as nodes keep it. An earlier version
// of the authority, which certifies no sentry hosts, does not serve it.
var revokedHostsNotice = notice{path: revokedHostsPath, file: revokedHostsFile, what: "the list of revoked sentry hosts"}

// A notice of the authority is kept by the nodes, in a file of their identity's folder.
type notice struct{ path, file, what string }

// follow replaces a kept notice by the authority's.
func (i *Identity) follow(ctx context.Context, n notice) error {
	p := i.Current()
	if p.renewAt == "" || p.ID.Role != Node {
		return nil
	}
	raw, err := ask(ctx, p.renewAt, http.MethodGet, n.path, p.authorityConfig(), nil)
	if errors.Is(err, errNotServed) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", n.what, err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if bytes.Equal(raw, i.noticed(n)) {
		return nil
	}
	return durable.Write(filepath.Join(i.dir, n.file), raw, 0o644)
}

// noticed returns a kept notice; nil: none was fetched yet.
func (i *Identity) noticed(n notice) []byte {
	raw, err := readBounded(filepath.Join(i.dir, n.file))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		i.log.Warn("reading "+n.what+" failed", telemetry.KeyError, err.Error())
	}
	return raw
}

// RevokedHosts returns the last list of revoked sentry hosts, signed by the authority, as
// JSON; nil: none was fetched yet.
func (i *Identity) RevokedHosts() []byte { return i.noticed(revokedHostsNotice) }

// Joined is the result of a Join.
type Joined struct {
	// Hosts reports whether the key of the machine's sentry host was certified: false if
	// the authority is of an earlier version, or for another role than node.
	Hosts bool
}

// enlist keeps the certificate of the sentry host, and the key of builds.
func enlist(own *installation.Keys, of issued) (Joined, error) {
	if own == nil || of.Host == nil {
		return Joined{}, nil
	}
	if err := own.Enlist(*of.Host); err != nil {
		return Joined{}, err
	}
	if of.BuildKey != nil {
		if err := own.UpdateBuildKey(*of.BuildKey); err != nil {
			return Joined{}, err
		}
	}
	return Joined{Hosts: true}, nil
}
