package e2b

import (
	"context"
	"errors"
	"net/http"
	"regexp"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/secrets"
)

// secretView is a Secret as E2B's clients see it: never its value.
type secretView struct {
	SecretID       string            `json:"secretID"`
	Name           string            `json:"name"`
	CurrentVersion int64             `json:"currentVersion"`
	Metadata       map[string]string `json:"metadata"`
	CreatedAt      string            `json:"createdAt"`
	UpdatedAt      string            `json:"updatedAt"`
}

func secretViewOf(s sandbox.Secret) secretView {
	v := secretView{
		SecretID: s.ID, Name: s.Name, CurrentVersion: s.ValueVersion, Metadata: s.Metadata,
		CreatedAt: timestamp(s.CreatedAt), UpdatedAt: timestamp(s.UpdatedAt),
	}
	if v.Metadata == nil {
		v.Metadata = map[string]string{}
	}
	return v
}

func errNoSecret(idOrName string) error {
	return sandbox.Errorf(sandbox.NotFound, "secret %.128q not found", idOrName)
}

// secretNamePattern matches the names that E2B allows; we allow more.
var secretNamePattern = regexp.MustCompile(`^[a-z0-9_-]{1,128}$`)

// secretOf returns the Secret in the path, by ID or name. E2B's names are in lower
// case.
func (a *API) secretOf(r *http.Request, who sandbox.Identity) (sandbox.Secret, error) {
	asked := r.PathValue("secret")
	rest.Named(r.Context(), asked)
	s, err := a.Secrets.Find(r.Context(), who.Tenant, asked)
	if lower := strings.ToLower(asked); errors.Is(err, sandbox.NotFound) && lower != asked {
		s, err = a.Secrets.Find(r.Context(), who.Tenant, lower)
	}
	if errors.Is(err, sandbox.NotFound) {
		err = errNoSecret(asked)
	}
	return s, err
}

// known is uses with the names of the caller's Secrets: a name that exists only in
// lower case, as E2B's clients create them, matches in any case.
func (a *API) known(ctx context.Context, who sandbox.Identity, uses sandbox.SecretUses) (sandbox.SecretUses, error) {
	list, err := uses.List()
	if err != nil || len(list) == 0 {
		return uses, err
	}
	all, err := a.Secrets.List(ctx, who.Tenant)
	if err != nil {
		return "", err
	}
	there := map[string]bool{}
	for _, s := range all {
		there[s.Name] = true
	}
	for i, u := range list {
		if lower := strings.ToLower(u.Secret); !there[u.Secret] && there[lower] {
			list[i].Secret = lower
		}
	}
	return sandbox.NewSecretUses(list)
}

// replyUnstored answers with v, and forbids clients and proxies to store the answer.
func replyUnstored(w http.ResponseWriter, status int, v any) error {
	w.Header().Set("Cache-Control", "no-store")
	return rest.Reply(w, status, v)
}

// CreateSecret answers POST /secrets with 201.
func (a *API) CreateSecret(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body struct {
		Name     string            `json:"name"`
		Value    string            `json:"value"`
		Metadata map[string]string `json:"metadata"`
	}
	if err := rest.Decode(r, &body); err != nil {
		return err
	}
	name := strings.ToLower(body.Name)
	if !secretNamePattern.MatchString(name) {
		return sandbox.Errorf(sandbox.Invalid, "name has 1 to 128 letters, digits and the characters _ and -")
	}
	made, err := a.Secrets.Create(r.Context(), who.Tenant, secrets.Request{ID: rest.ResourceLike(r.Context(), "p"), Name: name, Metadata: body.Metadata, Value: sandbox.SecretValue(body.Value)})
	if err != nil {
		return err
	}
	rest.Made(r.Context(), made.Name)
	return replyUnstored(w, http.StatusCreated, secretViewOf(made))
}

// UpdateSecret answers POST /secrets/{secret}: it replaces the value, at once also in
// Sandboxes that use it.
func (a *API) UpdateSecret(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body struct {
		Value    string            `json:"value"`
		Metadata map[string]string `json:"metadata"`
	}
	if err := rest.Decode(r, &body); err != nil {
		return err
	}
	s, err := a.secretOf(r, who)
	if err != nil {
		return err
	}
	replaced, err := a.Secrets.Replace(r.Context(), who.Tenant, secrets.Request{Name: s.Name, Metadata: body.Metadata, Value: sandbox.SecretValue(body.Value)})
	if err != nil {
		return err
	}
	if err := a.Updates.SecretChanged(r.Context(), who.Tenant, replaced.Name); err != nil {
		return err
	}
	return replyUnstored(w, http.StatusOK, secretViewOf(replaced))
}

// GetSecret answers GET /secrets/{secret}.
func (a *API) GetSecret(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	if _, err := parameters(r); err != nil {
		return err
	}
	s, err := a.secretOf(r, who)
	if err != nil {
		return err
	}
	return replyUnstored(w, http.StatusOK, secretViewOf(s))
}

// ListSecrets answers GET /secrets with a page of them by name.
func (a *API) ListSecrets(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	values, err := parameters(r, pageParameters...)
	if err != nil {
		return err
	}
	all, err := pageByName(w, values, func(s sandbox.Secret) string { return s.Name }, func() ([]sandbox.Secret, error) {
		return a.Secrets.List(r.Context(), who.Tenant)
	})
	if err != nil {
		return err
	}
	views := make([]secretView, len(all))
	for i, s := range all {
		views[i] = secretViewOf(s)
	}
	return replyUnstored(w, http.StatusOK, views)
}

// DeleteSecret answers DELETE /secrets/{secret} and removes it from Sandboxes.
func (a *API) DeleteSecret(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	s, err := a.secretOf(r, who)
	missing := err
	switch {
	case errors.Is(err, sandbox.NotFound): // perhaps by an earlier request that stopped in between
		s.Name = strings.ToLower(r.PathValue("secret"))
	case err != nil:
		return err
	}
	err = rest.DropSecret(r.Context(), a.Secrets, a.Updates, who.Tenant, s.Name)
	switch {
	case errors.Is(err, sandbox.NotFound) && missing != nil:
		return missing
	case err != nil && !errors.Is(err, sandbox.NotFound):
		return err
	}
	return noContent(w)
}
