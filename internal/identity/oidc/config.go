package oidc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"slices"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// MaxIssuers bounds the configured issuers.
const MaxIssuers = 16

// Issuer is an identity provider, and the mapping of its tokens.
type Issuer struct {
	// Name is the prefix, "NAME:", of its users and Tenants. It must never be reused for
	// another issuer.
	Name string `json:"name"`
	// URL is the iss of its tokens, and its discovery base: https.
	URL string `json:"issuer"`
	// Audience is the required aud of its tokens.
	Audience string `json:"audience"`
	// ClientID is the OAuth client of the command line for browser logins, and Scopes the
	// scopes it requests. Without ClientID, browser logins are not offered. Nil Scopes:
	// openid and offline_access.
	ClientID string   `json:"client_id,omitempty"`
	Scopes   []string `json:"scopes,omitempty"`
	// Tenant is the Tenant of all its users; empty: see TenantClaim.
	Tenant sandbox.TenantID `json:"tenant,omitempty"`
	// TenantClaim is the claim that names the Tenant. With Tenants, only values that are
	// keys of it are accepted and mapped; without, each value is the Tenant NAME:VALUE.
	TenantClaim string                      `json:"tenant_claim,omitempty"`
	Tenants     map[string]sandbox.TenantID `json:"tenants,omitempty"`
	// RoleClaim is the claim with the user's roles, one string or several, looked up in
	// Roles; unknown ones are ignored, and the highest Role counts. Users without one get
	// Role; if that is empty, none.
	RoleClaim string                  `json:"role_claim,omitempty"`
	Roles     map[string]sandbox.Role `json:"roles,omitempty"`
	Role      sandbox.Role            `json:"role,omitempty"`
}

var namePattern = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

// Parse reads a JSON array of Issuers.
func Parse(text string) ([]Issuer, error) {
	var all []Issuer
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(&all); err != nil {
		return nil, fmt.Errorf("it must be a JSON array of issuers: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("text follows the JSON array of issuers")
	}
	if len(all) > MaxIssuers {
		return nil, fmt.Errorf("there may be at most %d issuers", MaxIssuers)
	}
	names, urls := map[string]bool{}, map[string]bool{}
	for i, is := range all {
		if err := is.check(); err != nil {
			return nil, fmt.Errorf("issuer %d: %w", i+1, err)
		}
		if names[is.Name] || urls[is.URL] {
			return nil, fmt.Errorf("issuer %d: another has its name or its URL", i+1)
		}
		names[is.Name], urls[is.URL] = true, true
	}
	return all, nil
}

func (is Issuer) check() error {
	u, err := url.Parse(is.URL)
	switch {
	case !namePattern.MatchString(is.Name) || is.Name == "dev" || is.Name == "sha256":
		return fmt.Errorf("name must be 1 to 32 of a-z, 0-9 and '-', beginning with a letter, and neither dev nor sha256, not %q", is.Name)
	case err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("issuer must be an https URL without query, not %q", is.URL)
	case is.Audience == "":
		return errors.New("audience is missing: without it tokens for other services would be taken")
	case is.ClientID == "" && is.Scopes != nil:
		return errors.New("scopes needs client_id")
	case is.Scopes != nil && !slices.Contains(is.Scopes, "openid"):
		return errors.New(`scopes must have "openid" among them`)
	case (is.Tenant == "") == (is.TenantClaim == ""):
		return errors.New("set tenant or tenant_claim, one of them")
	case is.Tenants != nil && is.TenantClaim == "":
		return errors.New("tenants needs tenant_claim")
	case (is.RoleClaim == "") != (len(is.Roles) == 0):
		return errors.New("role_claim and roles go together")
	case is.Role == "" && is.RoleClaim == "":
		return errors.New("set role, or role_claim and roles: no user has a role otherwise")
	case is.Role != "" && !is.Role.Valid():
		return fmt.Errorf("role must be one of %q", sandbox.Roles())
	}
	for _, r := range is.Roles {
		if !r.Valid() {
			return fmt.Errorf("roles must map to %q, not %q", sandbox.Roles(), r)
		}
	}
	for value, t := range is.Tenants {
		if value == "" || len(t) == 0 || len(t) > 128 {
			return errors.New("tenants must map texts to tenants of 1 to 128 bytes")
		}
	}
	if len(is.Tenant) > 128 {
		return errors.New("a tenant has 1 to 128 bytes")
	}
	return nil
}
