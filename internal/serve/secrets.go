package serve

import (
	"fmt"
	"path/filepath"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
	"github.com/cloud-sandbox/cloud-sandbox/internal/launch"
	"github.com/cloud-sandbox/cloud-sandbox/internal/secrets"
)

// secretsOf is the Secrets of a Store, under the operator's master keys. Dev mode always
// has one.
func secretsOf(cfg config.Config, layout launch.Layout, store sandbox.SecretStore) (*secrets.Service, error) {
	if cfg.Dev && cfg.SecretsKeys == "" && cfg.SecretsKeyFile == "" {
		kept := config.Config{Data: filepath.Join(layout.Server(), "secrets-key")}
		if err := kept.KeepSecret(); err != nil {
			return nil, err
		}
		cfg.SecretsKeys = string(kept.Secret)
	}
	kms, err := keyringOf(cfg)
	if err != nil {
		return nil, err
	}
	return secrets.New(store, kms), nil
}

// keyringOf reads the configured master keys; nil: none.
func keyringOf(cfg config.Config) (secrets.KMS, error) {
	switch {
	case cfg.SecretsKeys != "":
		ring, err := secrets.ParseKeyring(cfg.SecretsKeys)
		if err != nil {
			return nil, fmt.Errorf("CLOUD_SANDBOX_SECRETS_KEY: %w", err)
		}
		return ring, nil
	case cfg.SecretsKeyFile != "":
		ring, err := secrets.ReadKeyring(cfg.SecretsKeyFile)
		if err != nil {
			return nil, fmt.Errorf("CLOUD_SANDBOX_SECRETS_KEY_FILE, which the server's user must be able to read: %w", err)
		}
		return ring, nil
	}
	return nil, nil
}

// OperatorSecrets is the Secrets of a Store for the operator on the server itself, whose
// shell must have the server's environment.
func OperatorSecrets(getenv func(string) string, store sandbox.SecretStore) (*secrets.Service, error) {
	keys, file := config.SecretsKeys(getenv)
	kms, err := keyringOf(config.Config{SecretsKeys: keys, SecretsKeyFile: file})
	if err != nil {
		return nil, err
	}
	return secrets.New(store, kms), nil
}
