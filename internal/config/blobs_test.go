package config

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const goodKey = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

func TestLoadBlobs(t *testing.T) {
	load := func(pairs ...string) (Config, error) { return Load(map[string]string{"dev": "true"}, env(pairs...)) }
	c, err := load()
	if err != nil || c.Blobs.Wanted() {
		t.Errorf("by default: %+v, %v", c.Blobs, err)
	}
	c, err = load("CLOUD_SANDBOX_BLOBS", "file:///mnt/blobs/", "CLOUD_SANDBOX_BLOBS_KEY", goodKey, "SNAPSHOT_DISK_MB", "3")
	if err != nil || c.Blobs.Dir != "/mnt/blobs" || len(c.Blobs.Keys) != 1 || c.Blobs.DiskBytes != 3<<20 || c.Blobs.BacklogRate != 32<<20 || !c.Blobs.Wanted() {
		t.Errorf("a folder: %+v, %v", c.Blobs, err)
	}
	c, err = load("CLOUD_SANDBOX_BLOBS", "s3://my.bucket/a/b/", "CLOUD_SANDBOX_BLOBS_KEY_FILE", "/etc/key", "CLOUD_SANDBOX_S3_CREDENTIALS_FILE", "/etc/credentials")
	if err != nil || c.Blobs.Bucket != "my.bucket" || c.Blobs.Prefix != "a/b" || c.Blobs.Endpoint != "https://s3.amazonaws.com" || c.Blobs.Region != "us-east-1" {
		t.Errorf("a bucket: %+v, %v", c.Blobs, err)
	}
	s3 := []string{"CLOUD_SANDBOX_BLOBS", "s3://bucket", "CLOUD_SANDBOX_BLOBS_KEY", goodKey}
	for name, tt := range map[string]struct {
		pairs []string
		want  string
	}{
		"no scheme":          {[]string{"CLOUD_SANDBOX_BLOBS", "/mnt/blobs"}, "CLOUD_SANDBOX_BLOBS: \"/mnt/blobs\" is neither"},
		"a host":             {[]string{"CLOUD_SANDBOX_BLOBS", "file://mnt/blobs"}, "is neither"},
		"the root":           {[]string{"CLOUD_SANDBOX_BLOBS", "file:///mnt/.."}, "is neither"},
		"a bucket too short": {[]string{"CLOUD_SANDBOX_BLOBS", "s3://b"}, "is neither"},
		"a bad prefix":       {[]string{"CLOUD_SANDBOX_BLOBS", "s3://bucket/a/../b"}, "is neither"},
		"no key":             {[]string{"CLOUD_SANDBOX_BLOBS", "file:///mnt/blobs"}, "CLOUD_SANDBOX_BLOBS_KEY"},
		"two keys":           {[]string{"CLOUD_SANDBOX_BLOBS", "file:///mnt/blobs", "CLOUD_SANDBOX_BLOBS_KEY", goodKey, "CLOUD_SANDBOX_BLOBS_KEY_FILE", "/k"}, "set one"},
		"a short key":        {[]string{"CLOUD_SANDBOX_BLOBS", "file:///mnt/blobs", "CLOUD_SANDBOX_BLOBS_KEY", goodKey[2:]}, "64 hex digits"},
		"a key twice":        {[]string{"CLOUD_SANDBOX_BLOBS", "file:///mnt/blobs", "CLOUD_SANDBOX_BLOBS_KEY", goodKey + "," + goodKey}, "key 2: it is listed twice"},
		"a short second key": {[]string{"CLOUD_SANDBOX_BLOBS", "file:///mnt/blobs", "CLOUD_SANDBOX_BLOBS_KEY", goodKey + " " + goodKey[4:]}, "key 2"},
		"a published key":    {[]string{"CLOUD_SANDBOX_BLOBS", "file:///mnt/blobs", "CLOUD_SANDBOX_BLOBS_KEY", strings.Repeat("0", 64)}, "guess"},
		"no credentials":     {s3, "CLOUD_SANDBOX_S3_ACCESS_KEY"},
		"half of them":       {append(s3, "CLOUD_SANDBOX_S3_ACCESS_KEY", "a"), "set both"},
		"all of them":        {append(s3, "CLOUD_SANDBOX_S3_ACCESS_KEY", "a", "CLOUD_SANDBOX_S3_SECRET_KEY", "b", "CLOUD_SANDBOX_S3_CREDENTIALS_FILE", "/c"), "not all"},
		"a bad endpoint":     {append(s3, "CLOUD_SANDBOX_S3_ENDPOINT", "localhost:9000"), "CLOUD_SANDBOX_S3_ENDPOINT"},
		"an endpoint's path": {append(s3, "CLOUD_SANDBOX_S3_ENDPOINT", "http://localhost:9000/x"), "CLOUD_SANDBOX_S3_ENDPOINT"},
		"a bound and none":   {[]string{"SNAPSHOT_DISK_MB", "1"}, "needs CLOUD_SANDBOX_BLOBS"},
		"a bad bound":        {[]string{"SNAPSHOT_DISK_MB", "-1"}, "SNAPSHOT_DISK_MB"},
		"a bad rate":         {[]string{"SNAPSHOT_BACKLOG_MB_PER_SECOND", "fast"}, "SNAPSHOT_BACKLOG_MB_PER_SECOND"},
	} {
		if _, err := load(tt.pairs...); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		} else if strings.Contains(err.Error(), goodKey[4:]) {
			t.Errorf("%s: it shows the key: %v", name, err)
		}
	}
}

func TestReadBlobsKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	b := Blobs{KeyFile: path}
	if err := b.ReadKeys(); err == nil || !strings.Contains(err.Error(), "CLOUD_SANDBOX_BLOBS_KEY_FILE") {
		t.Errorf("a file that is not there: %v", err)
	}
	for content, ok := range map[string]bool{goodKey + "\n": true, goodKey: true, "": false, goodKey + goodKey: false, "# a comment\n" + goodKey + "\n" + strings.Repeat("01", 16) + strings.Repeat("10", 16): true} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		b := Blobs{KeyFile: path}
		if err := b.ReadKeys(); (err == nil) != ok || ok && !bytes.Equal(b.Keys[0][:2], []byte{0, 0x11}) {
			t.Errorf("%q: %v", content, err)
		}
	}
}

// A session-manager deletes copies and opens none, so it needs no key.
func TestBlobsWithoutKey(t *testing.T) {
	b := Blobs{Dir: "/mnt/blobs"}
	for role, ok := range map[string]bool{"": false, RoleNode: false, RoleSessionManager: true} {
		if err := b.check(role); (err == nil) != ok {
			t.Errorf("role %q: %v", role, err)
		}
	}
	b.Keys, b.KeyFile = [][]byte{make([]byte, 32)}, "/k"
	if err := b.check(RoleSessionManager); err == nil {
		t.Error("a key and a file of keys are taken")
	}
}

// A command that uploads builds needs the place and the credentials, and no key.
func TestBlobsOf(t *testing.T) {
	for _, tt := range []struct {
		name string
		env  map[string]string
		want string // in the error; empty: none
	}{
		{"nothing", nil, ""},
		{"a folder", map[string]string{"CLOUD_SANDBOX_BLOBS": "file:///blobs"}, ""},
		{"a bucket", map[string]string{"CLOUD_SANDBOX_BLOBS": "s3://bucket/prefix", "CLOUD_SANDBOX_S3_ACCESS_KEY": "a", "CLOUD_SANDBOX_S3_SECRET_KEY": "s"}, ""},
		{"no credentials", map[string]string{"CLOUD_SANDBOX_BLOBS": "s3://bucket"}, "CLOUD_SANDBOX_S3_ACCESS_KEY"},
		{"no place", map[string]string{"CLOUD_SANDBOX_BLOBS": "bucket"}, "CLOUD_SANDBOX_BLOBS: \"bucket\" is neither"},
		{"other settings", map[string]string{"SNAPSHOT_DISK_MB": "x", "CLOUD_SANDBOX_BLOBS_KEY": "x"}, ""},
	} {
		got, err := BlobsOf(func(name string) string { return tt.env[name] })
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
		if err == nil && got.Wanted() != (tt.env["CLOUD_SANDBOX_BLOBS"] != "") {
			t.Errorf("%s: %+v", tt.name, got)
		}
	}
}
