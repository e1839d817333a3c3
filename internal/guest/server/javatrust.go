package server

import (
	"bytes"
	"crypto/sha1"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf16"
)

// javaStores are patterns of Java's trust stores.
var javaStores = []string{
	"/etc/ssl/certs/java/cacerts", "/usr/lib/jvm/*/lib/security/cacerts", "/usr/lib/jvm/*/jre/lib/security/cacerts",
	"/opt/java/*/lib/security/cacerts", "/usr/local/openjdk-*/lib/security/cacerts",
}

// javaAlias begins the names of our certificates in such a file.
const javaAlias = "cloud-sandbox-"

// trustInJava has every Java below root trust certificates in PEM, in place of the
// certificates of an earlier call. A store in another format than JKS stays as it
// is.
func trustInJava(root, authority string) error {
	var done []string
	for _, pattern := range javaStores {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return err
		}
		for _, path := range found {
			path, err := filepath.EvalSymlinks(path)
			if err != nil || slices.Contains(done, path) {
				continue // it does not exist, or is the same file
			}
			done = append(done, path)
			store, err := readBundle(path)
			if err != nil {
				return err
			}
			entries, err := parseJKS(store)
			if err != nil {
				continue
			}
			if err := replace(path, withCertificates(entries, authority)); err != nil {
				return err
			}
		}
	}
	return nil
}

// withCertificates returns a store with entries and the certificates in PEM, which
// replace our earlier ones.
func withCertificates(entries []jksEntry, authority string) []byte {
	entries = slices.DeleteFunc(entries, func(e jksEntry) bool { return strings.HasPrefix(e.alias, javaAlias) })
	rest := []byte(authority)
	for n := 1; ; n++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return formatJKS(entries)
		}
		entries = append(entries, jksEntry{alias: fmt.Sprint(javaAlias, n), certificate: block.Bytes})
	}
}

// A jksEntry is a certificate in a store of the format JKS.
type jksEntry struct {
	alias       string
	date        uint64 // milliseconds since 1970
	certificate []byte // DER
}

// Numbers and words of the format.
const (
	jksMagic       = 0xFEEDFEED
	jksVersion     = 2
	jksCertificate = 2 // kind of an entry; others hold keys
	jksType        = "X.509"
	jksPassword    = "changeit" // of every such store; it is never changed
)

// parseJKS reads a store that holds certificates alone.
func parseJKS(store []byte) ([]jksEntry, error) {
	r := bytes.NewReader(store)
	var head struct{ Magic, Version, Count uint32 }
	if err := binary.Read(r, binary.BigEndian, &head); err != nil {
		return nil, err
	}
	if head.Magic != jksMagic || head.Version != jksVersion {
		return nil, fmt.Errorf("the store is not in the format JKS")
	}
	var entries []jksEntry
	for range head.Count {
		var kind uint32
		if err := binary.Read(r, binary.BigEndian, &kind); err != nil {
			return nil, err
		}
		if kind != jksCertificate {
			return nil, fmt.Errorf("the store holds more than certificates")
		}
		var e jksEntry
		var err error
		if e.alias, err = readText(r); err != nil {
			return nil, err
		}
		if err := binary.Read(r, binary.BigEndian, &e.date); err != nil {
			return nil, err
		}
		if _, err := readText(r); err != nil {
			return nil, err
		}
		var size uint32
		if err := binary.Read(r, binary.BigEndian, &size); err != nil {
			return nil, err
		}
		if int64(size) > int64(r.Len()) {
			return nil, os.ErrInvalid
		}
		e.certificate = make([]byte, size)
		_, _ = r.Read(e.certificate) // the length was checked
		entries = append(entries, e)
	}
	return entries, nil
}

func readText(r *bytes.Reader) (string, error) {
	var size uint16
	if err := binary.Read(r, binary.BigEndian, &size); err != nil {
		return "", err
	}
	if int(size) > r.Len() {
		return "", os.ErrInvalid
	}
	text := make([]byte, size)
	_, _ = r.Read(text) // the length was checked
	return string(text), nil
}

// formatJKS writes a store.
func formatJKS(entries []jksEntry) []byte {
	put := binary.BigEndian
	out := put.AppendUint32(nil, jksMagic)
	out = put.AppendUint32(out, jksVersion)
	out = put.AppendUint32(out, uint32(len(entries)))
	for _, e := range entries {
		out = put.AppendUint32(out, jksCertificate)
		out = append(put.AppendUint16(out, uint16(len(e.alias))), e.alias...)
		out = put.AppendUint64(out, e.date)
		out = append(put.AppendUint16(out, uint16(len(jksType))), jksType...)
		out = append(put.AppendUint32(out, uint32(len(e.certificate))), e.certificate...)
	}
	sum := sha1.New() // required by the format; it detects damage only
	for _, c := range utf16.Encode([]rune(jksPassword)) {
		sum.Write(put.AppendUint16(nil, c))
	}
	sum.Write([]byte("Mighty Aphrodite")) // every reader of the format wants these words
	sum.Write(out)
	return sum.Sum(out)
}
