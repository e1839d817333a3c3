package serve

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// Names of secrets in fingerprints.
const (
	guestSeed   = "guest seed"
	tokenSecret = "token secret"
)

// openSecrets opens the seed of guests' tokens and Tenants' secrets, if the process's
// role needs them. The service secret of its calls is opened elsewhere. The seed stays
// the same when the secret of users' tokens changes, so that running Sandboxes stay
// reachable.
func (j *joined) openSecrets(ctx context.Context) error {
	if !j.cfg.NeedsGuests() {
		return nil
	}
	kept := j.cfg
	kept.Data = j.layout.Server()
	if err := kept.KeepGuestSeed(); err != nil {
		return err
	}
	j.seed = kept.GuestSeed
	if err := j.checkSeed(ctx); err != nil {
		return err
	}
	var err error
	j.secrets, err = secretsOf(j.cfg, j.layout, j.store)
	return err
}

// fingerprint is a keyed hash of a secret: it tells whether two processes have the same
// one, and nothing else about a random secret.
func fingerprint(secret []byte, name string) string {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte("cloud-sandbox fingerprint: " + name)) // never fails
	return hex.EncodeToString(h.Sum(nil))
}

// checkSeed returns an error for a seed that differs from the installation's seed. With
// it, guests would refuse the tokens of this process, and this process would refuse the
// tokens of the other processes.
func (j *joined) checkSeed(ctx context.Context) error {
	if j.shared == nil {
		return nil
	}
	own := fingerprint(j.seed, guestSeed)
	kept, err := j.shared.Fingerprint(ctx, guestSeed, own)
	if err != nil {
		return fmt.Errorf("compare the guest seed: %w", err)
	}
	if kept == own {
		return nil
	}
	if len(j.cfg.GuestSeed) == 0 {
		return fmt.Errorf("CLOUD_SANDBOX_GUEST_SEED is not set, and the other processes on this database have another guest seed than %s: set it, or CLOUD_SANDBOX_GUEST_SEED_FILE, at every gateway and session-manager to the seed of the first process, which is in server/guest-seed/jwt-secret of its data folder if it was not set there",
			filepath.Join(j.layout.Server(), "guest-seed"))
	}
	return errors.New("CLOUD_SANDBOX_GUEST_SEED differs from the guest seed of the other processes on this database, whose sandboxes this process could not reach: set the same at every gateway and session-manager")
}

// tokenSecret returns the secret of users' tokens. Unlike the seed it may be changed.
// So a secret that differs from the secret of the gateway that started last causes only
// a warning.
func (j *joined) tokenSecret() ([]byte, error) {
	kept := j.cfg
	kept.Data = j.layout.Server()
	if err := kept.KeepSecret(); err != nil || j.shared == nil {
		return kept.Secret, err
	}
	ctx := context.Background() // the Store bounds it
	own := fingerprint(kept.Secret, tokenSecret)
	last, err := j.shared.Fingerprint(ctx, tokenSecret, own)
	if err == nil && last != own {
		j.log.Warn("JWT_SECRET differs from the secret of the gateway that started last: each of the two refuses tokens that the other one signed; set the same at every gateway")
		err = j.shared.SetFingerprint(ctx, tokenSecret, own)
	}
	if err != nil {
		j.log.Warn("comparing JWT_SECRET with the other gateways failed", telemetry.KeyError, err)
	}
	return kept.Secret, nil
}
