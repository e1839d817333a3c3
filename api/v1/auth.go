package v1

// TokenRequest asks for a token for a user.
type TokenRequest struct {
	UserID string `json:"user_id"`
	Role   string `json:"role"`
}

// Token is a bearer token.
type Token struct {
	AccessToken string `json:"access_token"`
	TokenType   string `json:"token_type"` // "bearer"
	ExpiresIn   int    `json:"expires_in"` // seconds
}

// Provider is an identity provider at which a user can log in.
type Provider struct {
	Name     string   `json:"name"`
	Issuer   string   `json:"issuer"`
	ClientID string   `json:"client_id"`
	Audience string   `json:"audience"` // of the tokens that the server accepts
	Scopes   []string `json:"scopes"`
}

// ProtectedResource names the issuers of tokens for MCP, in the format of RFC 9728.
type ProtectedResource struct {
	Resource string `json:"resource"` // URL
	Name     string `json:"resource_name"`
	// Servers are the identity providers. Without one only API keys work.
	Servers       []string `json:"authorization_servers,omitempty"`
	Scopes        []string `json:"scopes_supported,omitempty"` // for the first of them
	BearerMethods []string `json:"bearer_methods_supported"`
	Documentation string   `json:"resource_documentation"` // URL
}

// Providers are all identity providers of a server.
type Providers struct {
	Providers []Provider `json:"providers"`
}

// Health is the answer of a running process.
type Health struct {
	Service string `json:"service"`
	Status  string `json:"status"` // "ok"
}

// Readiness reports whether a server can create sandboxes.
type Readiness struct {
	Ready   bool     `json:"ready"`
	Reasons []string `json:"reasons"` // why it cannot, on some or all nodes
}
