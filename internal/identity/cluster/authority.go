package cluster

import (
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/durable"
)

const (
	// CertificateLife is the life of a certificate. Its role renews it when half is over,
	// so that the process that answers may be away for half of that time.
	CertificateLife = 7 * 24 * time.Hour
	// authorityLife is the life of an authority's certificate.
	authorityLife = 10 * 365 * 24 * time.Hour
	// earlier is how long before its issue a certificate is valid: the tolerated
	// difference of clocks.
	earlier = 5 * time.Minute
	// MaxTokenLife bounds the life of a join token.
	MaxTokenLife = 7 * 24 * time.Hour
)

// Names in the folder of an authority, which only root may enter.
const (
	authorityFolder  = "ca"
	authorityKeyFile = "ca.key"
	clusterFile      = "cluster.json"
	tokensFolder     = "tokens"
	issuedFolder     = "issued"
	revokedFolder    = "revoked"
)

// settings is the content of clusterFile.
type settings struct {
	Name string `json:"name"`
	Join string `json:"join"` // HOST:PORT where joins are answered
}

// Authority is the CA of a cluster, in the folder of an operator. Methods are safe for
// concurrent use, also by several processes.
type Authority struct {
	dir      string
	settings settings
	cert     *x509.Certificate
	key      crypto.Signer
}

// Bundle is the folder of an instance that Create has made.
type Bundle struct {
	ID     ID
	Folder string
}

// Create makes the CA of a cluster in a folder, a key that signs builds, and identities for
// the first instance of each role but nodes. Their folders belong to uid. join is the address where joins will
// be answered.
func Create(dir, name, join, instance string, uid int) (*Authority, []Bundle, error) {
	if err := errors.Join(CheckName(name), CheckName(instance), CheckAddress(join)); err != nil {
		return nil, nil, err
	}
	if err := makeOpen(dir); err != nil {
		return nil, nil, fmt.Errorf("make the folder of the cluster: %w", err)
	}
	own := filepath.Join(dir, authorityFolder)
	if err := os.Mkdir(own, 0o700); errors.Is(err, fs.ErrExist) {
		return nil, nil, fmt.Errorf("%s holds the authority of a cluster already: choose another folder", dir)
	} else if err != nil {
		return nil, nil, fmt.Errorf("make the folder of the authority: %w", err)
	}
	for _, sub := range []string{tokensFolder, issuedFolder, revokedFolder} {
		if err := os.Mkdir(filepath.Join(own, sub), 0o700); err != nil {
			return nil, nil, err
		}
	}
	if err := createKey(own, settings{Name: name, Join: join}); err != nil {
		return nil, nil, err
	}
	a, err := OpenAuthority(dir)
	if err == nil {
		_, err = a.ReplaceBuildKey()
	}
	if err != nil {
		return nil, nil, err
	}
	var bundles []Bundle
	for _, role := range Roles() {
		if role == Node {
			continue
		}
		b := Bundle{ID: ID{name, role, instance}, Folder: filepath.Join(dir, role)}
		key, text, err := newKey()
		if err != nil {
			return nil, nil, err
		}
		of, err := a.issue(b.ID, key.Public(), CertificateLife)
		if err == nil {
			err = writeFolder(b.Folder, uid, text, of, join)
		}
		if err != nil {
			return nil, nil, err
		}
		bundles = append(bundles, b)
	}
	return a, bundles, nil
}

// createKey makes the key and the certificate of an authority. The certificate is
// written last: without it the folder is none.
func createKey(dir string, s settings) error {
	key, text, err := newKey()
	if err != nil {
		return err
	}
	serial, err := newSerial()
	if err != nil {
		return err
	}
	now := time.Now()
	c := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "Cloud Sandbox cluster " + s.Name},
		NotBefore: now.Add(-earlier), NotAfter: now.Add(authorityLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return errors.Join(
		durable.Write(filepath.Join(dir, authorityKeyFile), text, 0o600),
		durable.Write(filepath.Join(dir, clusterFile), append(raw, '\n'), 0o600),
		durable.Write(filepath.Join(dir, caFile), certificatePEM(der), 0o644),
	)
}

// OpenAuthority reads the CA in a folder of Create. Only root can.
func OpenAuthority(dir string) (*Authority, error) {
	a := &Authority{dir: filepath.Join(dir, authorityFolder)}
	raw, err := os.ReadFile(filepath.Join(a.dir, clusterFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s holds no authority of a cluster: `cloud-sandbox cluster init` makes one", dir)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("only root may use the authority of a cluster: %w", err)
	case err != nil:
		return nil, err
	}
	if err := json.Unmarshal(raw, &a.settings); err != nil {
		return nil, fmt.Errorf("%s: %w", clusterFile, err)
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(a.dir, caFile), filepath.Join(a.dir, authorityKeyFile))
	if err != nil {
		return nil, fmt.Errorf("read the authority of the cluster: %w", err)
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA {
		return nil, fmt.Errorf("the certificate in %s is not an authority's", a.dir)
	}
	a.cert, a.key = pair.Leaf, key
	return a, nil
}

// Cluster returns the name of the cluster.
func (a *Authority) Cluster() string { return a.settings.Name }

// Address returns where joins are answered.
func (a *Authority) Address() string { return a.settings.Join }

// Fingerprint identifies the authority: the SHA-256 of its certificate, in hexadecimal.
func (a *Authority) Fingerprint() string { return fingerprint(a.cert) }

func fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return hex.EncodeToString(sum[:])
}

func newSerial() (*big.Int, error) {
	return rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
}

// Issued is a certificate that an authority has issued, and that has not expired.
type Issued struct {
	ID      string    `json:"id"` // ROLE/NAME
	Serial  string    `json:"serial"`
	Expires time.Time `json:"expires"`
}

// certify signs a certificate for a key.
func (a *Authority) certify(id ID, public crypto.PublicKey, life time.Duration) (*x509.Certificate, error) {
	if _, err := algorithm(public); err != nil {
		return nil, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: id.Short()}, URIs: []*url.URL{id.url()},
		NotBefore: now.Add(-earlier), NotAfter: now.Add(life), BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, public, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign a certificate: %w", err)
	}
	return x509.ParseCertificate(der)
}

// issue makes and records a certificate.
func (a *Authority) issue(id ID, public crypto.PublicKey, life time.Duration) (issued, error) {
	if err := id.Check(); err != nil {
		return issued{}, err
	}
	if id.Cluster != a.settings.Name {
		return issued{}, fmt.Errorf("this authority is of the cluster %q", a.settings.Name)
	}
	cert, err := a.certify(id, public, life)
	if err != nil {
		return issued{}, err
	}
	raw, err := json.Marshal(Issued{ID: id.Short(), Serial: cert.SerialNumber.String(), Expires: cert.NotAfter.UTC()})
	if err != nil {
		return issued{}, err
	}
	// The record comes first: a certificate without one could not be revoked.
	if err := durable.Write(a.record(issuedFolder, cert.SerialNumber.String()), raw, 0o600); err != nil {
		return issued{}, fmt.Errorf("record a certificate: %w", err)
	}
	crl, err := a.CRL()
	if err != nil {
		return issued{}, err
	}
	return issued{Certificate: certificatePEM(cert.Raw), CA: certificatePEM(a.cert.Raw), CRL: crl}, nil
}

func (a *Authority) record(folder, serial string) string {
	return filepath.Join(a.dir, folder, serial+".json")
}

// Issued lists the certificates that are valid now, by identity.
func (a *Authority) Issued() ([]Issued, error) {
	all, err := a.records(issuedFolder)
	slices.SortFunc(all, func(x, y Issued) int {
		if c := strings.Compare(x.ID, y.ID); c != 0 {
			return c
		}
		return x.Expires.Compare(y.Expires)
	})
	return all, err
}

// records reads the records of certificates in a folder and removes the expired ones.
func (a *Authority) records(folder string) ([]Issued, error) {
	files, err := readRecords[Issued](filepath.Join(a.dir, folder))
	if err != nil {
		return nil, err
	}
	all := []Issued{}
	for path, i := range files {
		if time.Now().After(i.Expires) {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
			continue
		}
		all = append(all, i)
	}
	return all, nil
}

// readRecords reads the JSON files of a folder, by path.
func readRecords[T any](dir string) (map[string]T, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	all := map[string]T{}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		path := filepath.Join(dir, e.Name())
		raw, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // moved just now
		}
		var v T
		if err := errors.Join(err, json.Unmarshal(raw, &v)); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all[path] = v
	}
	return all, nil
}

// Revoke revokes every certificate of an identity, its tokens, and for a node the keys of
// its sentry hosts. It returns the number of certificates. The identity may join again with
// a new token; a node then needs a new key of its sentry host.
func (a *Authority) Revoke(id ID) (int, error) {
	if err := a.dropTokens(id); err != nil {
		return 0, err
	}
	n := 0
	for { // again after changes: a renewal in progress may have added one
		all, err := a.records(issuedFolder)
		if err != nil {
			return n, err
		}
		found := false
		for _, i := range all {
			if i.ID != id.Short() {
				continue
			}
			if err := a.revoke(i.Serial); err != nil {
				return n, err
			}
			found = true
			n++
		}
		if !found {
			break
		}
	}
	var hosts error
	if id.Role == Node {
		if hosts = a.revokeHosts(id.Name); hosts != nil {
			hosts = fmt.Errorf("revoke the key of the sentry host: %w", hosts)
		}
	}
	crl, err := a.CRL()
	if err == nil {
		err = durable.Write(filepath.Join(a.dir, crlFile), crl, 0o644)
	}
	return n, errors.Join(hosts, err)
}

func (a *Authority) revoke(serial string) error {
	err := durable.Rename(a.record(issuedFolder, serial), a.record(revokedFolder, serial))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // another process did
	}
	return err
}

func (a *Authority) isRevoked(serial *big.Int) (bool, error) {
	_, err := os.Stat(a.record(revokedFolder, serial.String()))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// CRL returns the list of revoked certificates, signed now.
func (a *Authority) CRL() ([]byte, error) {
	all, err := a.records(revokedFolder)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	// Numbers must grow. Two lists of one millisecond may have the same number.
	list := &x509.RevocationList{Number: big.NewInt(now.UnixMilli()), ThisUpdate: now.Add(-earlier), NextUpdate: a.cert.NotAfter}
	for _, i := range all {
		serial, ok := new(big.Int).SetString(i.Serial, 10)
		if !ok {
			return nil, fmt.Errorf("%q is no serial number", i.Serial)
		}
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: serial, RevocationTime: now})
	}
	der, err := x509.CreateRevocationList(rand.Reader, list, a.cert, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign the list of revoked certificates: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemCRL, Bytes: der}), nil
}

// CheckAddress accepts HOST:PORT.
func CheckAddress(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || port == "" || port == "0" || strings.ContainsAny(host, "/ ") {
		return fmt.Errorf("%q is not HOST:PORT", address)
	}
	return nil
}

// publicOf checks a CSR and returns its key.
func publicOf(der []byte) (crypto.PublicKey, error) {
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, err
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, err
	}
	if _, err := algorithm(csr.PublicKey); err != nil {
		return nil, err
	}
	return csr.PublicKey, nil
}
