package cluster

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/durable"
)

// tokenPrefix begins every join token, so that scanners for leaked secrets find one.
const tokenPrefix = "cst1_"

// maxJoinToken bounds a join token, in bytes.
const maxJoinToken = 2048

// JoinToken lets a machine join once, as one identity.
type JoinToken struct {
	Address     string `json:"a"` // HOST:PORT where joins are answered
	Fingerprint string `json:"f"` // of the authority
	Cluster     string `json:"c"`
	Role        string `json:"r"`
	Name        string `json:"n"`
	Secret      string `json:"s"`
}

// ID returns the identity that the token is for.
func (t JoinToken) ID() ID { return ID{t.Cluster, t.Role, t.Name} }

// String returns the token as operators copy it.
func (t JoinToken) String() string {
	raw, _ := json.Marshal(t) // of strings only
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(raw)
}

// ParseJoinToken parses the output of String.
func ParseJoinToken(text string) (JoinToken, error) {
	var t JoinToken
	rest, ours := strings.CutPrefix(strings.TrimSpace(text), tokenPrefix)
	raw, err := base64.RawURLEncoding.DecodeString(rest)
	if !ours || len(text) > maxJoinToken || err != nil || json.Unmarshal(raw, &t) != nil {
		return JoinToken{}, errors.New("this is not a join token: copy the whole output of `cloud-sandbox cluster token`")
	}
	if sum, err := hex.DecodeString(t.Fingerprint); err != nil || len(sum) != sha256.Size || t.Secret == "" {
		return JoinToken{}, errors.New("the join token lacks the fingerprint of its authority")
	}
	return t, errors.Join(t.ID().Check(), CheckAddress(t.Address))
}

// kept is the record of a token, which has only the hash of its secret, in its name.
type kept struct {
	Role    string    `json:"role"`
	Name    string    `json:"name"`
	Expires time.Time `json:"expires"`
}

func (a *Authority) tokenFile(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return filepath.Join(a.dir, tokensFolder, hex.EncodeToString(sum[:])+".json")
}

// NewToken makes a token for an identity, valid for life; address overrides where joins
// are answered.
func (a *Authority) NewToken(role, name string, life time.Duration, address string) (JoinToken, error) {
	if address == "" {
		address = a.settings.Join
	}
	id := ID{a.settings.Name, role, name}
	if err := errors.Join(id.Check(), CheckAddress(address)); err != nil {
		return JoinToken{}, err
	}
	if life <= 0 || life > MaxTokenLife {
		return JoinToken{}, fmt.Errorf("the life of a token is up to %v, not %v", MaxTokenLife, life)
	}
	t := JoinToken{Address: address, Fingerprint: a.Fingerprint(), Cluster: id.Cluster, Role: role, Name: name, Secret: rand.Text()}
	raw, err := json.Marshal(kept{Role: role, Name: name, Expires: time.Now().Add(life).UTC()})
	if err != nil {
		return JoinToken{}, err
	}
	if err := durable.Write(a.tokenFile(t.Secret), raw, 0o600); err != nil {
		return JoinToken{}, fmt.Errorf("record the token: %w", err)
	}
	return t, nil
}

// errToken is the answer to every token that is not accepted.
var errToken = errors.New("the join token is unknown, expired or already used: make a new one with `cloud-sandbox cluster token`")

// claim uses up a token and returns the identity that it is for. Of concurrent claims one
// succeeds.
func (a *Authority) claim(secret string) (ID, error) {
	path := a.tokenFile(secret)
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return ID{}, errToken
	}
	var k kept
	if err := errors.Join(err, json.Unmarshal(raw, &k)); err != nil {
		return ID{}, err
	}
	// Removing succeeds once: the token is used up before anything is issued.
	if err := os.Remove(path); errors.Is(err, fs.ErrNotExist) {
		return ID{}, errToken
	} else if err != nil {
		return ID{}, err
	}
	if err := durable.Folder(filepath.Dir(path)); err != nil {
		return ID{}, err
	}
	if time.Now().After(k.Expires) {
		return ID{}, errToken
	}
	return ID{a.settings.Name, k.Role, k.Name}, nil
}

// dropTokens removes the unused tokens of an identity, and all expired ones.
func (a *Authority) dropTokens(id ID) error {
	files, err := filepath.Glob(filepath.Join(a.dir, tokensFolder, "*.json"))
	if err != nil {
		return err
	}
	for _, path := range files {
		raw, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var k kept
		if err := errors.Join(err, json.Unmarshal(raw, &k)); err != nil {
			return err
		}
		if (k.Role != id.Role || k.Name != id.Name) && time.Now().Before(k.Expires) {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
