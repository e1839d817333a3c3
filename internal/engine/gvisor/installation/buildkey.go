package installation

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

const buildKeyFile = "build-key.json"

// BuildKey states which Key signs the builds of a cluster. The cluster's authority signs
// the statement.
type BuildKey struct {
	Cluster string `json:"cluster"` // name of the cluster
	Key     Key    `json:"key"`
	// Number is positive and grows with each replacement of the Key. A sentry host keeps
	// the highest one that it has seen.
	Number    int64  `json:"number"`
	Signature []byte `json:"signature"`
}

// statement returns the bytes that the authority signs.
func (b BuildKey) statement() []byte {
	return fmt.Appendf(nil, "cloud-sandbox build key 1\n%q %d %s\n", b.Cluster, b.Number, b.Key)
}

// CertifyBuildKey signs a BuildKey with these Keys, which must be the Keys of a cluster's
// authority.
func (k *Keys) CertifyBuildKey(cluster string, number int64, key Key) (BuildKey, error) {
	b := BuildKey{Cluster: cluster, Key: key, Number: number}
	var err error
	b.Signature, _, err = k.Sign(b.statement())
	return b, err
}

// UpdateBuildKey keeps the BuildKey of our cluster. It refuses one that another authority
// signed, and one that replaces a newer one: the authority may have been restored from a
// backup. Outside of a cluster it does nothing.
func (k *Keys) UpdateBuildKey(b BuildKey) error {
	m, err := k.membership()
	if m == nil {
		return err
	}
	if !m.signed(b) {
		return errors.New("the key of builds was not signed by the authority of this cluster")
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	kept, err := k.buildKey()
	if err != nil {
		return err
	}
	switch {
	case kept == nil || kept.Number < b.Number:
	case kept.Number == b.Number && kept.Key == b.Key:
		return nil
	default:
		return fmt.Errorf("the key of builds has the number %d, and another key with the number %d is kept here: if the cluster's CA was restored from a backup, run `cloud-sandbox cluster build-key --replace` there", b.Number, kept.Number)
	}
	return k.replace(buildKeyFile, b)
}

// signed reports whether the authority of the cluster signed b.
func (m *Membership) signed(b BuildKey) bool {
	return b.Number > 0 && b.Cluster == m.Certificate.Cluster && m.Authority.Verify(b.statement(), b.Signature)
}

// buildKey returns the BuildKey that is kept; nil: none.
func (k *Keys) buildKey() (*BuildKey, error) {
	b := new(BuildKey)
	if is, err := k.read(buildKeyFile, b); !is {
		return nil, err
	}
	return b, nil
}

// BuildKey returns the Key that signs the builds of our cluster; nil: builds need no
// signature here. A BuildKey that is kept and cannot be verified is an error.
func (k *Keys) BuildKey() (*Key, error) {
	kept, err := k.buildKey()
	if kept == nil {
		return nil, err
	}
	m, err := k.membership()
	if err != nil {
		return nil, err
	}
	if m == nil || !m.signed(*kept) {
		return nil, fmt.Errorf("the key of builds in %s was not signed by the authority of this machine's cluster: join the cluster again", filepath.Join(k.dir, buildKeyFile))
	}
	return &kept.Key, nil
}

// dropBuildKey removes the BuildKey of another cluster than m's. k.mu is held.
func (k *Keys) dropBuildKey(m *Membership) error {
	kept, err := k.buildKey()
	if err != nil || kept == nil || m.signed(*kept) {
		return err
	}
	if err := os.Remove(filepath.Join(k.dir, buildKeyFile)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
