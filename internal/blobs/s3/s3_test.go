package s3_test

import (
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/blobs/blobstest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/blobs/s3"
	"github.com/cloud-sandbox/cloud-sandbox/tests/rig/s3rig"
)

// inMemory starts an S3 server in this process.
func inMemory(t *testing.T) string {
	t.Helper()
	backend := s3mem.New()
	if err := backend.CreateBucket("bucket"); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(gofakes3.New(backend, gofakes3.WithLogger(gofakes3.StdLog(log.New(io.Discard, "", 0)))).Server())
	t.Cleanup(srv.Close)
	return srv.URL
}

func open(t *testing.T, cfg s3.Config) *s3.Blobs {
	t.Helper()
	b, err := s3.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func TestBlobs(t *testing.T) {
	blobstest.Run(t, func(t *testing.T) sandbox.Blobs {
		return open(t, s3.Config{Endpoint: inMemory(t), Region: "us-east-1", Bucket: "bucket", Prefix: "a/b", AccessKey: "k", SecretKey: "s"})
	})
}

// A real server compares signatures and checksums.
func TestBlobsOfARealServer(t *testing.T) {
	srv := s3rig.Start(t)
	for _, prefix := range []string{"", "some/prefix"} {
		blobstest.Run(t, func(t *testing.T) sandbox.Blobs {
			return open(t, s3.Config{
				Endpoint: srv.URL, Region: s3rig.Region, Bucket: srv.Bucket(t), Prefix: prefix, AccessKey: s3rig.AccessKey, SecretKey: s3rig.SecretKey,
			})
		})
	}
	b := open(t, s3.Config{Endpoint: srv.URL, Region: s3rig.Region, Bucket: srv.Bucket(t), AccessKey: s3rig.AccessKey, SecretKey: "wrong"})
	if err := b.Put(t.Context(), "a", []byte("x")); !errors.Is(err, sandbox.Denied) {
		t.Errorf("Put with wrong credentials = %v", err)
	}
	if err := b.Probe(t.Context()); !errors.Is(err, sandbox.Denied) {
		t.Errorf("Probe with wrong credentials = %v", err)
	}
	b = open(t, s3.Config{Endpoint: srv.URL, Region: s3rig.Region, Bucket: "other", AccessKey: s3rig.AccessKey, SecretKey: s3rig.SecretKey})
	if err := b.Probe(t.Context()); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("Probe of no bucket = %v", err)
	}
	if err := b.Put(t.Context(), "a", []byte("x")); !errors.Is(err, sandbox.Unavailable) {
		t.Errorf("Put into no bucket = %v", err)
	}
	if _, err := b.Get(t.Context(), "a"); !errors.Is(err, sandbox.Unavailable) {
		t.Errorf("Get from no bucket = %v", err)
	}
}

// What cannot be reached, or answers nonsense, is Unavailable, not lost.
func TestServerAway(t *testing.T) {
	const nobody = "http://127.0.0.1:1" // not one that somebody else may get meanwhile
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }))
	defer broken.Close()
	for name, url := range map[string]string{"nobody": nobody, "broken": broken.URL} {
		t.Run(name, func(t *testing.T) {
			b := open(t, s3.Config{Endpoint: url, Region: "us-east-1", Bucket: "bucket", AccessKey: "k", SecretKey: "s"})
			_, getErr := b.Get(t.Context(), "a")
			for what, err := range map[string]error{
				"Probe": b.Probe(t.Context()), "Put": b.Put(t.Context(), "a", []byte("x")), "Get": getErr, "Delete": b.Delete(t.Context(), "a"),
			} {
				if !errors.Is(err, sandbox.Unavailable) {
					t.Errorf("%s = %v", what, err)
				}
			}
		})
	}
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	good, empty := filepath.Join(dir, "good"), filepath.Join(dir, "empty")
	if err := os.WriteFile(good, []byte("[default]\naws_access_key_id = k\naws_secret_access_key = s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ok := s3.Config{Endpoint: inMemory(t), Region: "us-east-1", Bucket: "bucket", CredentialsFile: good}
	if err := open(t, ok).Put(t.Context(), "a", []byte("x")); err != nil {
		t.Errorf("with credentials from a file: %v", err)
	}
	for name, change := range map[string]func(*s3.Config){
		"no URL":              func(c *s3.Config) { c.Endpoint = "127.0.0.1:1" },
		"another scheme":      func(c *s3.Config) { c.Endpoint = "ftp://127.0.0.1" },
		"an empty file":       func(c *s3.Config) { c.CredentialsFile = empty },
		"a file that is away": func(c *s3.Config) { c.CredentialsFile = empty + "x" },
	} {
		cfg := ok
		change(&cfg)
		if _, err := s3.Open(cfg); !errors.Is(err, sandbox.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
