package secrets

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Service makes, replaces and opens Secrets. Its methods are safe for concurrent
// use.
type Service struct {
	store sandbox.SecretStore
	kms   KMS
}

// New returns a Service over store. If kms is nil, every method is Unsupported.
func New(store sandbox.SecretStore, kms KMS) *Service { return &Service{store: store, kms: kms} }

// errNoKey is the error when the operator has not set a master key.
var errNoKey = sandbox.Errorf(sandbox.Unsupported, "this server keeps no secrets: its operator has not set CLOUD_SANDBOX_SECRETS_KEY or CLOUD_SANDBOX_SECRETS_KEY_FILE")

func (s *Service) ready() error {
	if s.kms == nil {
		return errNoKey
	}
	return nil
}

// Request creates or changes a Secret.
type Request struct {
	ID          string // its ID, for a request that must take effect once; empty: a fresh one
	Name        string
	Description *string           // nil: none for a new Secret, unchanged for an existing one
	Metadata    map[string]string // nil: none for a new Secret, unchanged for an existing one
	// Hosts are the hosts that the value may be sent to. nil: any for a new Secret,
	// unchanged for an existing one; empty: any.
	Hosts *sandbox.SecretHosts
	Value sandbox.SecretValue
}

func (r Request) check() error {
	if err := sandbox.CheckSecretName(r.Name); err != nil {
		return err
	}
	if r.Description != nil {
		if err := sandbox.CheckSecretDescription(*r.Description); err != nil {
			return err
		}
	}
	if err := sandbox.CheckSecretMetadata(r.Metadata); err != nil {
		return err
	}
	return r.Value.Check()
}

// Create adds a Secret of a Tenant. A name in use is a Conflict.
func (s *Service) Create(ctx context.Context, tenant sandbox.TenantID, r Request) (sandbox.Secret, error) {
	if err := cmp.Or(s.ready(), r.check()); err != nil {
		return sandbox.Secret{}, err
	}
	now := time.Now().UTC().Truncate(time.Microsecond)
	c := sandbox.Secret{ID: cmp.Or(r.ID, sandbox.NewSecretID()), Tenant: tenant, Name: r.Name, ValueVersion: 1, CreatedAt: now, UpdatedAt: now}
	r.describe(&c)
	var err error
	if c.Sealed, err = s.seal(ctx, c, r.Value); err != nil {
		return sandbox.Secret{}, err
	}
	made, err := s.store.InsertSecret(ctx, c)
	if r.ID != "" && errors.Is(err, sandbox.Conflict) {
		// An earlier of these requests may have made it.
		if there, getErr := s.store.SecretByName(ctx, tenant, r.Name); getErr == nil && there.ID == r.ID {
			return there, nil
		}
	}
	return made, sandbox.NotBegun(err)
}

// describe copies the fields that the request sets, except its value, to c.
func (r Request) describe(c *sandbox.Secret) {
	if r.Description != nil {
		c.Description = *r.Description
	}
	if r.Hosts != nil {
		c.Hosts = *r.Hosts
	}
	c.Metadata = metadataOr(r.Metadata, c.Metadata)
}

// metadataOr returns m, or otherwise when m is nil. It returns nil for an empty m.
func metadataOr(m, otherwise map[string]string) map[string]string {
	switch {
	case m == nil:
		return otherwise
	case len(m) == 0:
		return nil
	}
	return m
}

// Replace gives a Secret of a Tenant another value, and another Description, other
// Metadata and other Hosts unless those are nil. Hosts change only together with the
// value, so that a caller who does not know the value cannot redirect it. NotFound when
// no Secret has this name.
func (s *Service) Replace(ctx context.Context, tenant sandbox.TenantID, r Request) (sandbox.Secret, error) {
	if err := cmp.Or(s.ready(), r.check()); err != nil {
		return sandbox.Secret{}, err
	}
	c, err := s.store.SecretByName(ctx, tenant, r.Name)
	if err != nil {
		return sandbox.Secret{}, err
	}
	if c.Sealed, err = s.seal(ctx, c, r.Value); err != nil {
		return sandbox.Secret{}, err
	}
	r.describe(&c)
	c.ValueVersion++
	c.UpdatedAt = time.Now().UTC().Truncate(time.Microsecond)
	return s.store.UpdateSecret(ctx, c)
}

// Get returns a Secret of a Tenant.
func (s *Service) Get(ctx context.Context, tenant sandbox.TenantID, name string) (sandbox.Secret, error) {
	if err := s.ready(); err != nil {
		return sandbox.Secret{}, err
	}
	c, err := s.store.SecretByName(ctx, tenant, name)
	if errors.Is(err, sandbox.NotFound) {
		err = noSecret(name)
	}
	return c, err
}

func noSecret(idOrName string) error {
	return sandbox.Errorf(sandbox.NotFound, "no secret %.64q; `cloud-sandbox secret ls` and GET /api/v1/secrets list yours", idOrName)
}

// List returns the Secrets of a Tenant by name.
func (s *Service) List(ctx context.Context, tenant sandbox.TenantID) ([]sandbox.Secret, error) {
	if err := s.ready(); err != nil {
		return nil, err
	}
	return s.store.Secrets(ctx, tenant)
}

// Find returns the Secret of a Tenant that has an ID, or else this name.
func (s *Service) Find(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Secret, error) {
	all, err := s.List(ctx, tenant)
	if err != nil {
		return sandbox.Secret{}, err
	}
	i := slices.IndexFunc(all, func(c sandbox.Secret) bool { return c.ID == idOrName })
	if i < 0 {
		i = slices.IndexFunc(all, func(c sandbox.Secret) bool { return c.Name == idOrName })
	}
	if i < 0 {
		return sandbox.Secret{}, noSecret(idOrName)
	}
	return all[i], nil
}

// Delete removes a Secret of a Tenant for good.
func (s *Service) Delete(ctx context.Context, tenant sandbox.TenantID, name string) error {
	if err := s.ready(); err != nil {
		return err
	}
	err := s.store.DeleteSecret(ctx, tenant, name)
	if errors.Is(err, sandbox.NotFound) {
		err = noSecret(name)
	}
	return err
}

// Open opens a Secret of a Tenant.
func (s *Service) Open(ctx context.Context, tenant sandbox.TenantID, name string) (sandbox.OpenSecret, error) {
	c, err := s.Get(ctx, tenant, name)
	if err != nil {
		return sandbox.OpenSecret{}, err
	}
	value, err := s.value(ctx, c)
	return sandbox.OpenSecret{Value: value, Hosts: c.Hosts}, err
}

func (s *Service) value(ctx context.Context, c sandbox.Secret) (sandbox.SecretValue, error) {
	key, err := s.kms.Unwrap(ctx, c.Sealed.KeyID, c.Sealed.Key, binding(c))
	if err != nil {
		return "", unreadable(c, err)
	}
	aead, err := gcm(key)
	if err != nil {
		return "", unreadable(c, err)
	}
	value, err := open(aead, c.Sealed.Value, binding(c))
	if err != nil {
		return "", unreadable(c, err)
	}
	return sandbox.SecretValue(value), nil
}

func unreadable(c sandbox.Secret, err error) error {
	return sandbox.Errorf(sandbox.Unavailable, "the secret %s cannot be decrypted: the operator of this server has to check the master keys", c.Name).WithCause(err)
}

// rotated is the number of Secrets that Rotate reads at a time.
const rotated = 100

// Rotate seals the keys of all Secrets, of every Tenant, again with the current master
// key, so that earlier master keys are not needed any more. It returns the number of
// changed Secrets. After an error it can be repeated.
func (s *Service) Rotate(ctx context.Context) (n int, err error) {
	if err := s.ready(); err != nil {
		return 0, err
	}
	for {
		old, err := s.store.SecretsNotUnder(ctx, s.kms.Current(), rotated)
		if err != nil || len(old) == 0 {
			return n, err
		}
		for _, c := range old {
			changed, err := s.rewrap(ctx, c)
			if err != nil {
				return n, fmt.Errorf("secret %s of tenant %s: %w", c.Name, c.Tenant, err)
			}
			if changed {
				n++
			}
		}
	}
}

// rewrap is Rotate for one Secret; false when it was changed or deleted concurrently.
func (s *Service) rewrap(ctx context.Context, c sandbox.Secret) (bool, error) {
	key, err := s.kms.Unwrap(ctx, c.Sealed.KeyID, c.Sealed.Key, binding(c))
	if err != nil {
		return false, err
	}
	if c.Sealed.Key, c.Sealed.KeyID, err = s.kms.Wrap(ctx, key, binding(c)); err != nil {
		return false, err
	}
	_, err = s.store.UpdateSecret(ctx, c)
	if errors.Is(err, sandbox.Conflict) || errors.Is(err, sandbox.NotFound) {
		return false, nil
	}
	return err == nil, err
}

// seal encrypts value with a key of its own, and that with the master key.
func (s *Service) seal(ctx context.Context, c sandbox.Secret, value sandbox.SecretValue) (sandbox.SealedValue, error) {
	key := make([]byte, keyBytes)
	_, _ = rand.Read(key) // never fails: crypto/rand aborts the process instead
	aead, err := gcm(key)
	if err != nil {
		return sandbox.SealedValue{}, err
	}
	wrapped, id, err := s.kms.Wrap(ctx, key, binding(c))
	if err != nil {
		return sandbox.SealedValue{}, sandbox.Errorf(sandbox.Unavailable, "the secret cannot be sealed now").WithCause(err)
	}
	return sandbox.SealedValue{KeyID: id, Key: wrapped, Value: seal(aead, []byte(value), binding(c))}, nil
}

// binding ties a sealed value to its Secret: it opens in no other record.
func binding(c sandbox.Secret) []byte {
	return fmt.Appendf(nil, "cloud-sandbox secret 1\x00%s\x00%s\x00%s", c.Tenant, c.ID, c.Name)
}
