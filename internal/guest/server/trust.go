package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	// authorityFile holds the Sandbox's own authority alone: for programs that add
	// one to the authorities they know, and for update-ca-certificates.
	authorityFile = "/usr/local/share/ca-certificates/cloud-sandbox.crt"
	// systemBundle is the file of trusted authorities on Debian and many other
	// systems.
	systemBundle = "/etc/ssl/certs/ca-certificates.crt"
	// maxBundle bounds the size of such a file, in bytes.
	maxBundle = 8 << 20
)

// otherBundles are the paths of that file on other systems: Red Hat and Alpine.
var otherBundles = []string{"/etc/pki/tls/certs/ca-bundle.crt", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem"}

// The authority stands between these lines in a bundle.
const (
	trustBegin = "# Cloud Sandbox: the authority of this sandbox\n"
	trustEnd   = "# Cloud Sandbox: end\n"
)

// trustEnv returns the variables by which programs that do not use the system
// bundle find trusted authorities.
func trustEnv() map[string]string {
	return map[string]string{
		"SSL_CERT_FILE": systemBundle, "REQUESTS_CA_BUNDLE": systemBundle, "CURL_CA_BUNDLE": systemBundle,
		"GIT_SSL_CAINFO": systemBundle, "AWS_CA_BUNDLE": systemBundle, "PIP_CERT": systemBundle,
		"NODE_EXTRA_CA_CERTS": authorityFile, "DENO_CERT": authorityFile,
	}
}

// trust has programs below root trust certificates in PEM, in place of the
// certificates of an earlier call.
func trust(root, authority string) error {
	own := filepath.Join(root, authorityFile)
	if err := os.MkdirAll(filepath.Dir(own), 0o755); err != nil {
		return err
	}
	if err := replace(own, []byte(authority)); err != nil {
		return err
	}
	bundle := filepath.Join(root, systemBundle)
	if err := os.MkdirAll(filepath.Dir(bundle), 0o755); err != nil {
		return err
	}
	if err := trustIn(bundle, authority); err != nil {
		return err
	}
	for _, other := range otherBundles {
		path, err := filepath.EvalSymlinks(filepath.Join(root, other))
		if err != nil || path == bundle {
			continue // it does not exist, or is the same file
		}
		if err := trustIn(path, authority); err != nil {
			return err
		}
	}
	return trustInJava(root, authority)
}

// trustIn adds a certificate to a bundle, which may be missing.
func trustIn(path, authority string) error {
	bundle, err := readBundle(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if before, rest, found := bytes.Cut(bundle, []byte(trustBegin)); found {
		_, after, _ := bytes.Cut(rest, []byte(trustEnd))
		bundle = append(before[:len(before):len(before)], after...)
	}
	if n := len(bundle); n > 0 && bundle[n-1] != '\n' {
		bundle = append(bundle, '\n')
	}
	return replace(path, []byte(string(bundle)+trustBegin+authority+trustEnd))
}

// readBundle reads a file that the user may have created. It never blocks, and it
// bounds the size.
func readBundle(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxBundle {
		return nil, fmt.Errorf("%s is no file of at most %d bytes", path, maxBundle)
	}
	return io.ReadAll(io.LimitReader(f, maxBundle))
}

// replace writes a file atomically, since programs read it meanwhile. The target of
// a symbolic link stays unchanged.
func replace(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".cloud-sandbox-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(content)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
