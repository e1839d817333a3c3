package installation

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

const (
	membershipFile  = "cluster.json"
	revocationsFile = "revoked.json"
	// maxRevocations bounds the Revocations that a server may pass on, in bytes.
	maxRevocations = 1 << 20
)

// MarshalText implements encoding.TextMarshaler with the output of String.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler with ParseKey.
func (k *Key) UnmarshalText(text []byte) (err error) {
	*k, err = ParseKey(string(text))
	return err
}

// Certificate states that a Key belongs to the sentry host of one node of a cluster.
// The cluster's authority signs it. All sentry hosts of the cluster import the states
// that such a Key signed.
type Certificate struct {
	Cluster   string `json:"cluster"` // name of the cluster
	Node      string `json:"node"`    // name of the node
	Key       Key    `json:"key"`
	Signature []byte `json:"signature"`
}

// statement returns the bytes that the authority signs.
func (c Certificate) statement() []byte {
	return fmt.Appendf(nil, "cloud-sandbox sentry host 1\n%q %q %s\n", c.Cluster, c.Node, c.Key)
}

// Membership makes a sentry host a member of a cluster. The sentry host keeps it in a file.
type Membership struct {
	Authority   Key         `json:"authority"` // the only signer of Certificates that it accepts
	Certificate Certificate `json:"certificate"`
}

// Revocations lists the Keys of a cluster whose Certificates are void, for example of
// stolen machines. The cluster's authority signs the list. A Key is revoked for ever, so a
// sentry host keeps the Keys of all lists that it has seen.
type Revocations struct {
	Keys      []Key  `json:"keys"`
	Signature []byte `json:"signature"`
}

// statement returns the bytes that the authority signs.
func (r Revocations) statement() []byte {
	return fmt.Appendf(nil, "cloud-sandbox revoked sentry hosts 1\n%s\n", r.Keys)
}

// Certify signs a Certificate with these Keys, which must be the Keys of a cluster's
// authority.
func (k *Keys) Certify(cluster, node string, key Key) (Membership, error) {
	m := Membership{Certificate: Certificate{Cluster: cluster, Node: node, Key: key}}
	var err error
	m.Certificate.Signature, m.Authority, err = k.Sign(m.Certificate.statement())
	return m, err
}

// Revoke signs Revocations with these Keys, which must be the Keys of a cluster's
// authority. It returns them as JSON.
func (k *Keys) Revoke(keys []Key) ([]byte, error) {
	r := Revocations{Keys: keys}
	var err error
	if r.Signature, _, err = k.Sign(r.statement()); err != nil {
		return nil, err
	}
	return json.Marshal(r)
}

// Enlist keeps m, in which the authority of a cluster certifies our own Key. It replaces
// the Membership of another cluster, and drops its BuildKey. Revoked Keys stay revoked.
func (k *Keys) Enlist(m Membership) error {
	own, err := k.Own()
	if err != nil {
		return err
	}
	if c := m.Certificate; c.Key != own || !m.Authority.Verify(c.statement(), c.Signature) {
		return errors.New("the authority's certificate is not for the key of this machine's sentry host")
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.replace(membershipFile, m); err != nil {
		return err
	}
	return k.dropBuildKey(&m)
}

// replace writes v as a file. k.mu is held.
func (k *Keys) replace(name string, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	aside, err := k.aside(append(raw, '\n'))
	if err != nil {
		return err
	}
	return os.Rename(aside, filepath.Join(k.dir, name))
}

// read reads a file into v; false: it does not exist.
func (k *Keys) read(name string, v any) (bool, error) {
	path := filepath.Join(k.dir, name)
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, v)
	}
	if err != nil {
		return false, fmt.Errorf("read %s: %w", path, err)
	}
	return true, nil
}

func (k *Keys) membership() (*Membership, error) {
	m := new(Membership)
	if is, err := k.read(membershipFile, m); !is {
		return nil, err
	}
	return m, nil
}

// Certificate returns the Certificate of our own Key; nil: the sentry host is in no
// cluster.
func (k *Keys) Certificate() (*Certificate, error) {
	m, err := k.membership()
	if m == nil {
		return nil, err
	}
	return &m.Certificate, nil
}

// UpdateRevocations adds the Keys of Revocations of our cluster, as JSON, to the
// revoked Keys that it already keeps. It refuses a list that another authority signed.
// Outside of a cluster it does nothing.
func (k *Keys) UpdateRevocations(raw []byte) error {
	m, err := k.membership()
	if m == nil {
		return err
	}
	var r Revocations
	if len(raw) > maxRevocations {
		return fmt.Errorf("the list of revoked sentry hosts has %d bytes, more than %d", len(raw), maxRevocations)
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return fmt.Errorf("the list of revoked sentry hosts: %w", err)
	}
	if !m.Authority.Verify(r.statement(), r.Signature) {
		return errors.New("the list of revoked sentry hosts was not signed by the authority of this cluster")
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	known, err := k.revoked()
	if err != nil {
		return err
	}
	all := slices.Concat(known, r.Keys)
	slices.SortFunc(all, func(a, b Key) int { return bytes.Compare(a[:], b[:]) })
	if all = slices.Compact(all); len(all) == len(known) {
		return nil
	}
	return k.replace(revocationsFile, all)
}

// revoked returns the revoked Keys that are kept, sorted.
func (k *Keys) revoked() (all []Key, err error) {
	_, err = k.read(revocationsFile, &all)
	return all, err
}

// Revoked reports whether an authority of our cluster has revoked key.
func (k *Keys) Revoked(key Key) (bool, error) {
	all, err := k.revoked()
	return slices.Contains(all, key), err
}

// TrustsMember reports whether the authority of our cluster certifies key with c.
func (k *Keys) TrustsMember(key Key, c *Certificate) (bool, error) {
	if c == nil {
		return false, nil
	}
	m, err := k.membership()
	if m == nil {
		return false, err
	}
	return c.Key == key && m.Authority.Verify(c.statement(), c.Signature), nil
}
