package session

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// checkSecrets returns Invalid for uses of unknown Secrets, and Denied for a host to
// which the Secret may not be sent.
func (m *Manager) checkSecrets(ctx context.Context, tenant sandbox.TenantID, uses sandbox.SecretUses) error {
	headers, err := m.headers(ctx, tenant, uses, func(why error) error { return why })
	size := 0
	for _, h := range headers {
		size += len(h.Value)
	}
	if err == nil && size > sandbox.MaxSecretBytes {
		return sandbox.Errorf(sandbox.Invalid, "secrets: the headers have %d bytes in all, and may have %d", size, sandbox.MaxSecretBytes)
	}
	return err
}

// headers returns the headers for uses. If a use is impossible, because its Secret is
// missing or may not be sent to its host, headers calls unfit: an error from it fails the
// call, nil leaves the use out.
func (m *Manager) headers(ctx context.Context, tenant sandbox.TenantID, uses sandbox.SecretUses, unfit func(why error) error) ([]sandbox.SecretHeader, error) {
	all, err := uses.List()
	if err != nil || len(all) == 0 {
		return nil, err
	}
	var headers []sandbox.SecretHeader
	wildcards := slices.ContainsFunc(all, func(u sandbox.SecretUse) bool { return strings.HasPrefix(u.Host, "*.") })
	secrets := map[string]sandbox.OpenSecret{} // opened ones; each is opened once
	for _, u := range all {
		host, port, err := u.Site()
		if err != nil {
			return nil, err
		}
		if u.Secret == "" {
			headers = append(headers, sandbox.SecretHeader{Host: host, Port: port, Header: u.Header, Value: u.Value("")})
			continue
		}
		if m.cfg.OpenSecret == nil {
			return nil, sandbox.Errorf(sandbox.Unsupported, "this server keeps no secrets")
		}
		secret, opened := secrets[u.Secret]
		if !opened {
			secret, err = m.cfg.OpenSecret(ctx, tenant, u.Secret)
		}
		var why error
		switch {
		case errors.Is(err, sandbox.NotFound):
			why = sandbox.Errorf(sandbox.Invalid, "secrets: no secret %s; `cloud-sandbox secret ls` and GET /api/v1/secrets list yours", u.Secret)
		case err != nil:
			return nil, err
		case !secret.Hosts.Allow(host, port):
			why = sandbox.Errorf(sandbox.Denied, "secrets: %s may not be sent to %s, only to %s", u.Secret, u.Host, strings.Join(secret.Hosts, ", "))
		}
		if why != nil {
			if err := unfit(why); err != nil {
				return nil, err
			}
			if wildcards { // an empty entry keeps the wildcards from applying to this host
				headers = append(headers, sandbox.SecretHeader{Host: host, Port: port})
			}
			continue
		}
		secrets[u.Secret] = secret
		headers = append(headers, sandbox.SecretHeader{Host: host, Port: port, Header: u.Header, Value: u.Value(secret.Value)})
	}
	return headers, nil
}

// openSecrets returns the SecretBinding for the Boot of sb. Secrets that were deleted, or
// may no longer be sent to their host, are left out.
func (m *Manager) openSecrets(ctx context.Context, sb sandbox.Sandbox) (sandbox.SecretBinding, error) {
	if sb.Secrets == "" {
		return sandbox.SecretBinding{}, nil
	}
	headers, err := m.headers(ctx, sb.Tenant, sb.Secrets, func(error) error { return nil })
	if err != nil {
		return sandbox.SecretBinding{}, err
	}
	certificate, key, err := m.cfg.Authority(sb.ID)
	return sandbox.SecretBinding{Authority: certificate, Key: sandbox.SecretValue(key), Headers: headers}, err
}

// SecretChanged implements sandbox.Sandboxes. A Boot that fails to apply the change keeps
// an old Revision, which reconciling finds.
func (m *Manager) SecretChanged(ctx context.Context, tenant sandbox.TenantID, name string) error {
	using, err := m.usersOf(ctx, tenant, name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	work := newGroupOf(parallelForks)
	for _, id := range using {
		work.do(func() error { return m.retell(ctx, id) })
	}
	return work.wait()
}

// usersOf returns the IDs of a Tenant's Sandboxes that use a Secret: running ones, and
// those in transition, which may have read the old value.
func (m *Manager) usersOf(ctx context.Context, tenant sandbox.TenantID, name string) ([]string, error) {
	var using []string
	q := sandbox.ListQuery{States: []sandbox.State{sandbox.Starting, sandbox.Running, sandbox.Pausing, sandbox.Resuming}}
	for {
		page, err := m.store.ListSandboxes(ctx, tenant, q)
		if err != nil {
			return nil, err
		}
		for _, sb := range page.Sandboxes {
			if sb.Secrets.Uses(name) {
				using = append(using, sb.ID)
			}
		}
		if q.Cursor = page.Next; q.Cursor == "" {
			return using, nil
		}
	}
}

// created waits for a create in progress in this process. Until then only the create may
// write the record.
func (m *Manager) created(ctx context.Context, id string) error {
	m.mu.Lock()
	c := m.creating[id]
	m.mu.Unlock()
	if c == nil {
		return nil
	}
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// retell sends the current values of its Secrets to the Boot of a Sandbox, if it runs.
func (m *Manager) retell(ctx context.Context, id string) error {
	now, done, err := m.move(ctx, id) // prevents a concurrent pause or resume
	if err != nil {
		return err
	}
	defer done()
	if now.State != sandbox.Running {
		return nil // it reads values when it resumes
	}
	sb, err := m.change(ctx, id, func(s *sandbox.Sandbox) error {
		s.Revision++
		return nil
	})
	if err != nil || sb.State != sandbox.Running {
		return err
	}
	if err := m.sendRecord(ctx, sb); err != nil {
		m.log.WarnContext(ctx, "telling a sandbox of a changed secret failed; will retry", telemetry.KeySandbox, id, telemetry.KeyError, err)
		m.mendSoon()
	}
	return nil
}
