// Package login gets the command line a token of an identity provider, by the
// authorization code flow with PKCE (RFC 7636) and a loopback address (RFC 8252), and
// keeps and renews it.
package login

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"html"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/oauth2"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

const (
	// patience is the timeout of a login.
	patience = 10 * time.Minute
	// askTime bounds one request to the provider.
	askTime = 30 * time.Second
	// early is the time before its expiry at which a token is renewed.
	early = 30 * time.Second
	// callbackPath is the path to which the provider redirects the browser.
	callbackPath = "/callback"
)

// Login is the stored record of one login.
type Login struct {
	Provider v1.Provider `json:"provider"`
	Token    string      `json:"token"` // for requests to the server
	Expires  time.Time   `json:"expires"`
	Refresh  string      `json:"refresh,omitempty"` // empty: it cannot be renewed
}

// Do logs a user in. It calls show with the URL that the user is to open in a browser
// on this machine, and waits until the browser returns from there.
func Do(ctx context.Context, p v1.Provider, show func(url string)) (Login, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("no login within ten minutes: run the command again"))
	defer cancel()
	ctx = oidc.ClientContext(ctx, &http.Client{Timeout: askTime})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return Login{}, fmt.Errorf("listen for the browser: %w", err)
	}
	discovered, config, err := discover(ctx, p, "http://"+ln.Addr().String()+callbackPath)
	if err != nil {
		ln.Close()
		return Login{}, err
	}
	state, nonce, verifier := rand.Text(), rand.Text(), oauth2.GenerateVerifier()
	show(config.AuthCodeURL(state, oidc.Nonce(nonce), oauth2.S256ChallengeOption(verifier)))
	code, err := wait(ctx, ln, state, p.Issuer)
	if err != nil {
		return Login{}, err
	}
	token, err := config.Exchange(ctx, code, oauth2.VerifierOption(verifier))
	if err != nil {
		return Login{}, refused(err)
	}
	id, _ := token.Extra("id_token").(string)
	verified, err := discovered.Verifier(&oidc.Config{ClientID: p.ClientID}).Verify(ctx, id)
	if err != nil {
		return Login{}, fmt.Errorf("%s sent an invalid ID token: %w", p.Issuer, err)
	}
	if verified.Nonce != nonce {
		return Login{}, fmt.Errorf("%s sent an ID token of another login", p.Issuer)
	}
	return loginOf(p, token, "")
}

// discover reads the issuer's endpoints.
func discover(ctx context.Context, p v1.Provider, redirect string) (*oidc.Provider, *oauth2.Config, error) {
	discovered, err := oidc.NewProvider(ctx, p.Issuer)
	if err != nil {
		return nil, nil, fmt.Errorf("ask the identity provider: %w", err)
	}
	endpoint := discovered.Endpoint()
	endpoint.AuthStyle = oauth2.AuthStyleInParams // no client secret
	for _, u := range []string{endpoint.AuthURL, endpoint.TokenURL} {
		if !strings.HasPrefix(u, "https://") {
			return nil, nil, fmt.Errorf("the identity provider %s sends logins to %q, which is not https", p.Issuer, u)
		}
	}
	return discovered, &oauth2.Config{ClientID: p.ClientID, Endpoint: endpoint, RedirectURL: redirect, Scopes: p.Scopes}, nil
}

// wait serves the browser until it delivers the code, and closes ln.
func wait(ctx context.Context, ln net.Listener, state, issuer string) (string, error) {
	type answer struct {
		code string
		err  error
	}
	came := make(chan answer, 1)
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+callbackPath, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if subtle.ConstantTimeCompare([]byte(q.Get("state")), []byte(state)) != 1 {
			page(w, http.StatusBadRequest, "This is not the login that was begun on the command line.") // another program may call this address
			return
		}
		a := answer{code: q.Get("code")}
		switch {
		case q.Has("iss") && q.Get("iss") != issuer:
			a.err = errors.New("another identity provider answered: log in again")
		case a.code == "":
			a.err = fmt.Errorf("the identity provider refused: %.100q %.300q", q.Get("error"), q.Get("error_description"))
		}
		if a.err == nil {
			page(w, http.StatusOK, "You are logged in: go back to the command line.")
		} else {
			page(w, http.StatusBadRequest, "You are not logged in: the command line says why.")
		}
		select {
		case came <- a:
		default: // an earlier callback was first
		}
	})
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: askTime, MaxHeaderBytes: 64 << 10}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	defer func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second) // for the page to arrive
		defer cancel()
		_ = srv.Shutdown(stop)
		_ = srv.Close()
	}()
	select {
	case a := <-came:
		return a.code, a.err
	case err := <-served:
		return "", fmt.Errorf("listen for the browser: %w", err)
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

func page(w http.ResponseWriter, status int, text string) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'")
	h.Set("Referrer-Policy", "no-referrer")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<!doctype html><title>cloud-sandbox</title><p>%s</p>\n", html.EscapeString(text))
}

// Fresh reports whether the token is valid for a while longer.
func (l Login) Fresh(now time.Time) bool { return now.Add(early).Before(l.Expires) }

// Renew returns l with a fresh token. If Over reports true for its error, the user
// must log in again.
func (l Login) Renew(ctx context.Context) (Login, error) {
	if l.Refresh == "" {
		return Login{}, &overError{errors.New("it cannot be renewed")}
	}
	ctx = oidc.ClientContext(ctx, &http.Client{Timeout: askTime})
	_, config, err := discover(ctx, l.Provider, "")
	if err != nil {
		return Login{}, err
	}
	token, err := config.TokenSource(ctx, &oauth2.Token{RefreshToken: l.Refresh}).Token()
	if err != nil {
		var answered *oauth2.RetrieveError
		if errors.As(err, &answered) && answered.ErrorCode == "invalid_grant" {
			return Login{}, &overError{refused(err)}
		}
		return Login{}, refused(err)
	}
	return loginOf(l.Provider, token, l.Refresh)
}

// overError means that a login is over.
type overError struct{ why error }

func (e *overError) Error() string { return "the login is over: " + e.why.Error() }
func (e *overError) Unwrap() error { return e.why }

// Over reports whether err means that the user must log in again.
func Over(err error) bool {
	var e *overError
	return errors.As(err, &e)
}

// refused returns the provider's error, without the request.
func refused(err error) error {
	var answered *oauth2.RetrieveError
	if errors.As(err, &answered) && answered.ErrorCode != "" {
		return fmt.Errorf("the identity provider refused: %.100q %.300q", answered.ErrorCode, answered.ErrorDescription)
	}
	return fmt.Errorf("ask the identity provider for a token: %w", err)
}

// loginOf selects, from a provider's tokens, the token that the server accepts: its
// audience is the provider's Audience.
func loginOf(p v1.Provider, token *oauth2.Token, refresh string) (Login, error) {
	id, _ := token.Extra("id_token").(string)
	for _, text := range []string{id, token.AccessToken} {
		var says jwt.RegisteredClaims // unchecked: the server checks
		if _, _, err := jwt.NewParser().ParseUnverified(text, &says); err != nil || !slices.Contains(says.Audience, p.Audience) || says.ExpiresAt == nil {
			continue
		}
		l := Login{Provider: p, Token: text, Expires: says.ExpiresAt.UTC(), Refresh: token.RefreshToken}
		if l.Refresh == "" { // keep the current one
			l.Refresh = refresh
		}
		return l, nil
	}
	return Login{}, fmt.Errorf("%s gave no token for %q: its client %q needs that as an audience", p.Issuer, p.Audience, p.ClientID)
}
