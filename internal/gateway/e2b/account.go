package e2b

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/keys"
)

// uuidOf is the UUID that E2B's clients see for an object of ours. It is always the
// same for one object (version 8 of RFC 9562).
func uuidOf(kind, id string) string {
	sum := sha256.Sum256([]byte("e2b " + kind + "\n" + id))
	b := sum[:16]
	b[6], b[8] = b[6]&0x0f|0x80, b[8]&0x3f|0x80
	text := hex.EncodeToString(b)
	return strings.Join([]string{text[:8], text[8:12], text[12:16], text[16:20], text[20:]}, "-")
}

// namespace is the namespace of a Tenant's names for E2B's clients, before the slash:
// the Tenant's ID in the characters that a name may have.
func namespace(tenant sandbox.TenantID) string {
	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_' {
			return c
		}
		return '-'
	}, strings.ToLower(string(tenant)))
}

// withoutNamespace is a name without the caller's namespace.
func withoutNamespace(who sandbox.Identity, name string) string {
	return strings.TrimPrefix(name, namespace(who.Tenant)+"/")
}

// checkTeam refuses a team ID other than the caller's; it may be empty.
func checkTeam(who sandbox.Identity, id string) error {
	if id != "" && id != uuidOf("team", string(who.Tenant)) {
		return sandbox.Errorf(sandbox.Invalid, "teamID is not your team")
	}
	return nil
}

// teamView is a Tenant as a team.
type teamView struct {
	TeamID    string `json:"teamID"`
	Name      string `json:"name"`
	APIKey    string `json:"apiKey"`
	IsDefault bool   `json:"isDefault"`
}

// ListTeams answers GET /teams with the caller's only team. Its API key is the
// request's own: the secrets of others are not stored.
func (a *API) ListTeams(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	if _, err := parameters(r); err != nil {
		return err
	}
	key := r.Header.Get("X-API-Key")
	if _, bearer, ok := strings.Cut(r.Header.Get("Authorization"), " "); key == "" && ok && sandbox.ValidKeySecret(bearer) {
		key = bearer
	}
	return rest.Reply(w, http.StatusOK, []teamView{{TeamID: uuidOf("team", string(who.Tenant)), Name: string(who.Tenant), APIKey: key, IsDefault: true}})
}

// keyView is a Key without its secret.
type keyView struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Mask      maskView  `json:"mask"`
	CreatedAt string    `json:"createdAt"`
	CreatedBy *struct{} `json:"createdBy"` // our users have no UUIDs
	LastUsed  *string   `json:"lastUsed"`
	Key       string    `json:"key,omitempty"` // in the answer to the request that created it
}

// maskView is the visible part of a secret.
type maskView struct {
	Prefix      string `json:"prefix"`
	ValueLength int    `json:"valueLength"`
	Begin       string `json:"maskedValuePrefix"`
	End         string `json:"maskedValueSuffix"`
}

func keyViewOf(k sandbox.Key) keyView {
	const prefix, length = "e2b_", 40
	v := keyView{
		ID: uuidOf("key", k.ID), Name: k.Name, CreatedAt: timestamp(k.CreatedAt),
		Mask: maskView{Prefix: prefix, ValueLength: length, End: k.Hint},
	}
	if at := k.LastUsed(); !at.IsZero() {
		used := timestamp(at)
		v.LastUsed = &used
	}
	return v
}

// ListKeys answers GET /api-keys.
func (a *API) ListKeys(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	if _, err := parameters(r); err != nil {
		return err
	}
	all, err := a.Keys.List(r.Context(), who.Tenant)
	if err != nil {
		return err
	}
	views := make([]keyView, len(all))
	for i, k := range all {
		views[i] = keyViewOf(k)
	}
	return rest.Reply(w, http.StatusOK, views)
}

// CreateKey answers POST /api-keys with 201 and the Key, which has the role and the
// scopes of its creator.
func (a *API) CreateKey(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body struct {
		Name string `json:"name"`
	}
	if err := rest.Decode(r, &body); err != nil {
		return err
	}
	req := keys.Request{Name: body.Name}
	req.ID = rest.ResourceLike(r.Context(), "k")
	key, secret, err := a.Keys.Create(r.Context(), who, req)
	if err != nil {
		return err
	}
	rest.Made(r.Context(), key.ID)
	view := keyViewOf(key)
	view.Key = secret
	return rest.Reply(w, http.StatusCreated, view)
}

// RenameKey answers PATCH /api-keys/{id} with the Key.
func (a *API) RenameKey(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body struct {
		Name string `json:"name"`
	}
	if err := rest.Decode(r, &body); err != nil {
		return err
	}
	key, err := a.key(r, who)
	if err != nil {
		return err
	}
	if err := a.Keys.Rename(r.Context(), who, key.ID, body.Name); err != nil {
		return err
	}
	key.Name = body.Name
	return rest.Reply(w, http.StatusOK, keyViewOf(key))
}

// DeleteKey answers DELETE /api-keys/{id}.
func (a *API) DeleteKey(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	key, err := a.key(r, who)
	if err != nil {
		return err
	}
	if err := a.Keys.Revoke(r.Context(), who, key.ID); err != nil {
		return err
	}
	return noContent(w)
}

// key is the caller's Key in the path.
func (a *API) key(r *http.Request, who sandbox.Identity) (sandbox.Key, error) {
	all, err := a.Keys.List(r.Context(), who.Tenant)
	if err != nil {
		return sandbox.Key{}, err
	}
	id := r.PathValue("id")
	for _, k := range all {
		if uuidOf("key", k.ID) == id {
			return k, nil
		}
	}
	return sandbox.Key{}, sandbox.Errorf(sandbox.NotFound, "no API key %.40q", id)
}

// NoAccessTokens answers POST /access-tokens: E2B itself has dropped them.
func (a *API) NoAccessTokens(w http.ResponseWriter, _ *http.Request, _ sandbox.Identity) error {
	return rest.Reply(w, http.StatusGone, failure{Code: http.StatusGone, Message: "access tokens do not exist here: use an API key, or a token of /api/v1/auth/token"})
}

// NoAccessToken answers DELETE /access-tokens/{id}.
func (a *API) NoAccessToken(_ http.ResponseWriter, r *http.Request, _ sandbox.Identity) error {
	return sandbox.Errorf(sandbox.NotFound, "no access token %.40q", r.PathValue("id"))
}
