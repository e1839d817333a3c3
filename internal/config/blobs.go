package config

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
)

// Blobs configures where copies of Snapshots are kept, and the local disk limit.
type Blobs struct {
	// Dir is a folder, or Bucket an S3 bucket, with Prefix before each name; both empty:
	// no copies are kept.
	Dir, Bucket, Prefix string

	Endpoint, Region     string // of S3
	AccessKey, SecretKey string
	CredentialsFile      string // instead of AccessKey and SecretKey

	Keys    [][]byte // of blobsKeyBytes; the first encrypts, all of them decrypt
	KeyFile string   // holds them, in hex

	// DiskBytes limits the local disk space of Snapshots; zero: no limit.
	DiskBytes int64
	// BacklogRate limits copying of older Snapshots, in bytes a second; zero: no limit.
	BacklogRate int64
}

// Wanted reports whether copies are kept.
func (b *Blobs) Wanted() bool { return b.Dir != "" || b.Bucket != "" }

var bucketPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)

// place reads s3://BUCKET, s3://BUCKET/PREFIX or file:///FOLDER.
func (b *Blobs) place(v string) error {
	wrong := fmt.Errorf("%q is neither s3://BUCKET, s3://BUCKET/PREFIX nor file:///FOLDER", v)
	u, err := url.Parse(v)
	if err != nil || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return wrong
	}
	switch rest := strings.Trim(u.Path, "/"); {
	case u.Scheme == "file" && u.Host == "" && path.Clean(u.Path) != "/" && filepath.IsAbs(u.Path):
		b.Dir, b.Bucket = path.Clean(u.Path), ""
	case u.Scheme == "s3" && bucketPattern.MatchString(u.Host) && (rest == "" || sandbox.CheckBlobName(rest) == nil):
		b.Dir, b.Bucket, b.Prefix = "", u.Host, rest
	default:
		return wrong
	}
	return nil
}

func checkEndpoint(v string) error {
	u, err := url.Parse(v)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" || u.User != nil || u.RawQuery != "" {
		return fmt.Errorf("%q is not the URL of an S3 server, https://HOST or http://HOST:PORT", v)
	}
	return nil
}

const (
	blobsKeyBytes      = 32
	maxBlobsKeys       = 16
	maxBlobsKeyFile    = 16 << 10
	defaultBacklogRate = 32 << 20
)

// parseBlobsKeys reads keys in hex, separated by commas or space; lines that begin with
// '#' are skipped. Its errors never contain its input.
func parseBlobsKeys(text string) (keys [][]byte, err error) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "#") {
			continue
		}
		for _, word := range strings.FieldsFunc(line, func(c rune) bool { return c == ',' || unicode.IsSpace(c) }) {
			key, err := parseBlobsKey(word)
			if err == nil && slices.ContainsFunc(keys, func(k []byte) bool { return bytes.Equal(k, key) }) {
				err = errors.New("it is listed twice")
			}
			if err != nil {
				return nil, fmt.Errorf("key %d: %w", len(keys)+1, err)
			}
			keys = append(keys, key)
		}
	}
	switch {
	case len(keys) == 0:
		return nil, fmt.Errorf("no key is set: make one with `openssl rand -hex %d`, and keep it", blobsKeyBytes)
	case len(keys) > maxBlobsKeys:
		return nil, fmt.Errorf("there may be at most %d keys", maxBlobsKeys)
	}
	return keys, nil
}

func parseBlobsKey(v string) ([]byte, error) {
	key, err := hex.DecodeString(v)
	if err != nil || len(key) != blobsKeyBytes {
		return nil, fmt.Errorf("it is not %d hex digits; make a key with `openssl rand -hex %d`, and keep it: only this key opens the data that it sealed", 2*blobsKeyBytes, blobsKeyBytes)
	}
	if bytes.Count(key, key[:1]) == len(key) {
		return nil, errors.New("it is one byte again and again, which anyone could guess; make a key with `openssl rand -hex 32`")
	}
	return key, nil
}

func (b *Blobs) check(role string) error {
	if !b.Wanted() {
		if b.DiskBytes > 0 {
			return errors.New("SNAPSHOT_DISK_MB: it needs CLOUD_SANDBOX_BLOBS, which stores the snapshots that do not fit on this disk")
		}
		return nil
	}
	var errs []error
	// A session-manager deletes copies and opens none.
	if has := len(b.Keys) > 0; has == (b.KeyFile != "") && (has || role != RoleSessionManager) {
		errs = append(errs, errors.New("CLOUD_SANDBOX_BLOBS_KEY and CLOUD_SANDBOX_BLOBS_KEY_FILE: set one of them, because copies of snapshots are sealed; make a key with `openssl rand -hex 32`"))
	}
	if b.Bucket == "" {
		return errors.Join(errs...)
	}
	switch keys := b.AccessKey != "" || b.SecretKey != ""; {
	case keys && b.CredentialsFile != "":
		errs = append(errs, errors.New("CLOUD_SANDBOX_S3_CREDENTIALS_FILE: set it, or CLOUD_SANDBOX_S3_ACCESS_KEY and CLOUD_SANDBOX_S3_SECRET_KEY, not all"))
	case keys && (b.AccessKey == "" || b.SecretKey == ""):
		errs = append(errs, errors.New("CLOUD_SANDBOX_S3_ACCESS_KEY and CLOUD_SANDBOX_S3_SECRET_KEY: set both"))
	case !keys && b.CredentialsFile == "":
		errs = append(errs, errors.New("CLOUD_SANDBOX_S3_ACCESS_KEY and CLOUD_SANDBOX_S3_SECRET_KEY, or CLOUD_SANDBOX_S3_CREDENTIALS_FILE: set them, so that the S3 server knows who asks"))
	}
	return errors.Join(errs...)
}

// ReadKeys fills in Keys from KeyFile, if that is set.
func (b *Blobs) ReadKeys() error {
	if b.KeyFile == "" {
		return nil
	}
	f, err := os.Open(b.KeyFile)
	if err != nil {
		return fmt.Errorf("CLOUD_SANDBOX_BLOBS_KEY_FILE: the server's user cannot read it: %w", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxBlobsKeyFile))
	if err != nil {
		return fmt.Errorf("CLOUD_SANDBOX_BLOBS_KEY_FILE: %w", err)
	}
	if b.Keys, err = parseBlobsKeys(string(raw)); err != nil {
		return fmt.Errorf("CLOUD_SANDBOX_BLOBS_KEY_FILE: %w", err)
	}
	return nil
}
