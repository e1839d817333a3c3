package cluster

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/durable"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/installation"
)

// Files of an identity's folder. The first three have the names of a Secret of Kubernetes
// of the type kubernetes.io/tls.
const (
	caFile   = "ca.crt"  // one certificate or more
	certFile = "tls.crt" // the certificate, and the certificates of intermediate authorities
	keyFile  = "tls.key"
	// nextKeyFile is the key of a renewal in progress. It replaces keyFile after the new
	// certificate was written; a crash in between leaves it.
	nextKeyFile = "next.key"
	crlFile     = "crl.pem"   // certificates that are refused; may be missing
	joinFile    = "join.json" // where the identity is renewed; may be missing
)

const (
	pemCertificate = "CERTIFICATE"
	pemKey         = "PRIVATE KEY"
	pemCRL         = "X509 CRL"
	// maxFile bounds each file, in bytes.
	maxFile = 1 << 20
)

// renewal is the content of joinFile.
type renewal struct {
	Address string `json:"address"` // of the process that answers joins, HOST:PORT
}

// files are the contents of a folder.
type files struct{ ca, cert, key, nextKey, crl, join []byte }

func (f files) equal(o files) bool {
	return bytes.Equal(f.ca, o.ca) && bytes.Equal(f.cert, o.cert) && bytes.Equal(f.key, o.key) && bytes.Equal(f.nextKey, o.nextKey) &&
		bytes.Equal(f.crl, o.crl) && bytes.Equal(f.join, o.join)
}

// readFiles reads a folder. Only the first three files must exist.
func readFiles(dir string) (f files, err error) {
	for _, r := range []struct {
		name   string
		into   *[]byte
		needed bool
	}{
		{caFile, &f.ca, true},
		{certFile, &f.cert, true},
		{keyFile, &f.key, true},
		{nextKeyFile, &f.nextKey, false},
		{crlFile, &f.crl, false},
		{joinFile, &f.join, false},
	} {
		raw, err := readBounded(filepath.Join(dir, r.name))
		switch {
		case errors.Is(err, fs.ErrNotExist) && !r.needed:
		case errors.Is(err, fs.ErrPermission):
			return f, fmt.Errorf("read the identity: %w: this process runs as user %d and must be allowed to read it", err, os.Geteuid())
		case err != nil:
			return f, fmt.Errorf("read the identity: %w", err)
		}
		*r.into = raw
	}
	return f, nil
}

func readBounded(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("%s has more than %d bytes", path, maxFile)
	}
	return os.ReadFile(path)
}

// pair returns the certificate with its key. After an interrupted renewal this is the
// key in nextKeyFile; renewed reports that.
func (f files) pair() (pair tls.Certificate, renewed bool, err error) {
	pair, err = tls.X509KeyPair(f.cert, f.key)
	if err != nil && len(f.nextKey) > 0 {
		if next, nextErr := tls.X509KeyPair(f.cert, f.nextKey); nextErr == nil {
			return next, true, nil
		}
	}
	return pair, false, err
}

// newKey makes the key of an identity.
func newKey() (key *ecdsa.PrivateKey, text []byte, err error) {
	if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der}), nil
}

func certificatePEM(der ...[]byte) []byte {
	var out []byte
	for _, d := range der {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: d})...)
	}
	return out
}

// parseCertificates returns the certificates in PEM, of which at least one must exist.
func parseCertificates(text []byte) ([]*x509.Certificate, error) {
	var all []*x509.Certificate
	for rest := text; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != pemCertificate {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	if len(all) == 0 {
		return nil, errors.New("no certificate in PEM")
	}
	return all, nil
}

// issued is an identity as an authority returns it.
type issued struct {
	Certificate []byte `json:"certificate"` // PEM
	CA          []byte `json:"ca"`          // PEM
	CRL         []byte `json:"crl"`         // PEM
	// Host certifies the sentry host of a node that joined; nil: not asked for.
	Host *installation.Membership `json:"sentry_host,omitempty"`
	// BuildKey states which key signs builds, for a node that joined; nil: none does.
	BuildKey *installation.BuildKey `json:"build_key,omitempty"`
}

// writeFolder makes the folder of a new identity, which only uid may enter.
func writeFolder(dir string, uid int, key []byte, of issued, join string) error {
	if err := makeOpen(filepath.Dir(dir)); err != nil {
		return fmt.Errorf("make the folder of the identity: %w", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the folder of the identity: %w", err)
	}
	at, err := json.Marshal(renewal{Address: join})
	if err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(dir, nextKeyFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, f := range []struct {
		name string
		text []byte
		mode fs.FileMode
	}{
		{keyFile, key, 0o600},
		{caFile, of.CA, 0o644},
		{certFile, of.Certificate, 0o644},
		{crlFile, of.CRL, 0o644},
		{joinFile, append(at, '\n'), 0o644},
	} {
		path := filepath.Join(dir, f.name)
		if err := durable.WriteFor(uid, path, f.text, f.mode); err != nil {
			return fmt.Errorf("write the identity: %w", err)
		}
	}
	return own(dir, uid)
}

// makeOpen makes a missing folder and its parents. All users may enter them, regardless
// of the umask.
func makeOpen(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := makeOpen(filepath.Dir(dir)); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.Chmod(dir, 0o755)
}

// own gives a folder to a user. It follows no symbolic link, which that user may have put
// in its place.
func own(dir string, uid int) error {
	if uid == os.Geteuid() {
		return nil
	}
	return os.Lchown(dir, uid, uid)
}

// lockFolder keeps other processes from renewing the identity in a folder at the same
// time.
func lockFolder(dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock the folder of the identity: %w", err)
	}
	return func() { f.Close() }, nil // which frees the lock
}

// ownerOf is the user that a folder belongs to.
func ownerOf(dir string) (int, error) {
	var s unix.Stat_t
	if err := unix.Stat(dir, &s); err != nil {
		return 0, err
	}
	return int(s.Uid), nil
}

// request returns a CSR for a key: the proof that its sender has the key.
func request(key crypto.Signer) ([]byte, error) {
	return x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
}
