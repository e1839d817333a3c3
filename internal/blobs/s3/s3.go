// Package s3 keeps blobs in a bucket of S3, or of a server that speaks its
// protocol.
package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
)

// Config names the bucket and the credentials for it.
type Config struct {
	Endpoint string // http://HOST:PORT or https://HOST
	Region   string
	Bucket   string
	Prefix   string // before each name, with a '/' between; may be empty
	// AccessKey and SecretKey are the credentials; empty: they are read from
	// CredentialsFile, in the format of AWS's own tools, profile "default".
	AccessKey, SecretKey string
	CredentialsFile      string
}

// Blobs is a bucket, or the part of it below a prefix.
type Blobs struct {
	cfg    Config
	client *minio.Client
	http   *http.Transport
}

const (
	// tries is the number of times that one request is sent before it fails; the callers
	// retry later.
	tries = 3
	// answerLimit is the timeout for the begin of an answer, and for a connection.
	answerLimit = 30 * time.Second
	// connections is the limit of connections, in use and idle.
	connections = 32
)

// Open returns the blobs of a bucket. It sends no request.
func Open(cfg Config) (*Blobs, error) {
	u, err := url.Parse(cfg.Endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, sandbox.Errorf(sandbox.Invalid, "%q is not the URL of an S3 server", cfg.Endpoint)
	}
	creds := credentials.NewStaticV4(cfg.AccessKey, cfg.SecretKey, "")
	if cfg.AccessKey == "" {
		creds = credentials.NewFileAWSCredentials(cfg.CredentialsFile, "default")
		if v, err := creds.GetWithContext(nil); err != nil || v.AccessKeyID == "" {
			return nil, sandbox.Errorf(sandbox.Invalid, "the file with the credentials of S3 cannot be used").WithCause(err)
		}
	}
	transport, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return nil, errors.New("the default HTTP transport was replaced")
	}
	transport = transport.Clone()
	transport.MaxConnsPerHost, transport.MaxIdleConnsPerHost = connections, connections
	transport.ResponseHeaderTimeout, transport.DisableCompression = answerLimit, true
	client, err := minio.New(u.Host, &minio.Options{
		Creds: creds, Secure: u.Scheme == "https", Region: cfg.Region, Transport: transport, MaxRetries: tries,
	})
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Invalid, "the S3 server cannot be used").WithCause(err)
	}
	return &Blobs{cfg, client, transport}, nil
}

// Close closes idle connections.
func (b *Blobs) Close() { b.http.CloseIdleConnections() }

func (b *Blobs) key(name string) (string, error) {
	if err := sandbox.CheckBlobName(name); err != nil {
		return "", err
	}
	return strings.TrimPrefix(b.cfg.Prefix+"/"+name, "/"), nil
}

// Probe implements sandbox.Blobs.
func (b *Blobs) Probe(ctx context.Context) error {
	there, err := b.client.BucketExists(ctx, b.cfg.Bucket)
	if err != nil {
		return b.failed("look at the bucket", err)
	}
	if !there {
		return sandbox.Errorf(sandbox.NotFound, "no bucket %s", b.cfg.Bucket)
	}
	return nil
}

// Put implements sandbox.Blobs. The server compares a checksum.
func (b *Blobs) Put(ctx context.Context, name string, content []byte) error {
	if err := sandbox.CheckBlob(name, content); err != nil {
		return err
	}
	key, err := b.key(name)
	if err != nil {
		return err
	}
	_, err = b.client.PutObject(ctx, b.cfg.Bucket, key, bytes.NewReader(content), int64(len(content)), minio.PutObjectOptions{
		ContentType: "application/octet-stream", SendContentMd5: true, DisableMultipart: true,
	})
	return b.failed("put a blob", err)
}

// Get implements sandbox.Blobs.
func (b *Blobs) Get(ctx context.Context, name string) ([]byte, error) {
	key, err := b.key(name)
	if err != nil {
		return nil, err
	}
	body, info, _, err := minio.Core{Client: b.client}.GetObject(ctx, b.cfg.Bucket, key, minio.GetObjectOptions{})
	if err != nil {
		return nil, b.failed("get a blob", err)
	}
	defer body.Close()
	if info.Size < 0 || info.Size > sandbox.MaxBlob {
		return nil, sandbox.Errorf(sandbox.Unavailable, "the S3 server has a blob of %d bytes", info.Size)
	}
	content := make([]byte, info.Size)
	if _, err := io.ReadFull(body, content); err != nil {
		return nil, b.failed("read a blob", err)
	}
	return content, nil
}

// Size implements sandbox.Blobs.
func (b *Blobs) Size(ctx context.Context, name string) (int64, error) {
	key, err := b.key(name)
	if err != nil {
		return 0, err
	}
	info, err := b.client.StatObject(ctx, b.cfg.Bucket, key, minio.StatObjectOptions{})
	if err != nil {
		return 0, b.failed("look at a blob", err)
	}
	return info.Size, nil
}

// Delete implements sandbox.Blobs.
func (b *Blobs) Delete(ctx context.Context, name string) error {
	key, err := b.key(name)
	if err != nil {
		return err
	}
	err = b.failed("delete a blob", b.client.RemoveObject(ctx, b.cfg.Bucket, key, minio.RemoveObjectOptions{}))
	if errors.Is(err, sandbox.NotFound) {
		return nil
	}
	return err
}

// failed gives an error its Code; nil stays nil. A missing bucket does not mean that
// its blobs are gone.
func (b *Blobs) failed(doing string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	answer := minio.ToErrorResponse(err)
	err = fmt.Errorf("%s: %w", doing, err)
	switch {
	case answer.Code == minio.NoSuchBucket:
		return sandbox.Errorf(sandbox.Unavailable, "no bucket %s", b.cfg.Bucket).WithCause(err)
	case answer.Code == minio.NoSuchKey:
		return sandbox.Errorf(sandbox.NotFound, "no such blob").WithCause(err)
	case answer.StatusCode == http.StatusForbidden, answer.StatusCode == http.StatusUnauthorized:
		return sandbox.Errorf(sandbox.Denied, "the S3 server refuses us: check the credentials and their rights in the bucket").WithCause(err)
	}
	return sandbox.Errorf(sandbox.Unavailable, "the S3 server gave an unexpected answer").WithCause(err)
}
