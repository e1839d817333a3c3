package users

import (
	"context"
	"errors"
	"slices"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity"
)

// Operation names of the API.
const (
	opCreate = "createUser"
	opChange = "changeUser"
	opRemove = "deleteUser"
)

// Invite describes a User to create before their first token.
type Invite struct {
	ID    string // as in their tokens
	Name  string
	Email string
	Role  sandbox.Role // empty: from their tokens
}

// Create makes a record of a User who has none, or was removed. Denied if the User's
// Role, from in or a removed User's tokens, is above the caller's. Conflict if the User
// exists.
func (s *Service) Create(ctx context.Context, who sandbox.Identity, tenant sandbox.TenantID, in Invite) (sandbox.User, error) {
	u := sandbox.User{
		Tenant: tenant, ID: in.ID, Name: in.Name, Email: in.Email, Source: sandbox.UserInvited, Given: in.Role,
		State: sandbox.UserActive, CreatedAt: identity.Now(),
	}
	if err := errors.Join(tenant.Check(), u.Check()); err != nil {
		return sandbox.User{}, err
	}
	if err := s.flush(ctx); err != nil {
		return sandbox.User{}, err
	}
	there, err := s.cfg.Store.UserByID(ctx, tenant, u.ID)
	if err != nil && !errors.Is(err, sandbox.NotFound) {
		return sandbox.User{}, err
	}
	if there.State == sandbox.UserRemoved { // else the Store returns Conflict
		u.TokenRole, u.Version = there.TokenRole, there.Version
	}
	u = u.Decided(there, who.Role)
	if err := errors.Join(mayGive(who, u), mayRelease(who, there, u)); err != nil {
		return sandbox.User{}, err
	}
	if u, err = s.cfg.Store.InsertUser(ctx, u); err != nil {
		return sandbox.User{}, sandbox.NotBegun(err)
	}
	return u, s.settle(ctx, who, u, opCreate)
}

// mayGive refuses a User with a Role or scopes that the caller (who) may not grant; a Key
// may have few Scopes. An unknown User without a decided Role passes: their tokens will
// say it.
func mayGive(who sandbox.Identity, u sandbox.User) error {
	if u.Role() != "" && !who.Role.Gives(u.Role()) {
		return sandbox.Errorf(sandbox.Denied, "the user would be of a role above yours")
	}
	for _, scope := range sandbox.Scopes() {
		if who.Scopes != nil && u.Role().May(scope) && !slices.Contains(who.Scopes, scope) {
			return sandbox.Errorf(sandbox.Denied, "the user would have the scope %q, which you do not have", scope)
		}
	}
	return nil
}

// mayRelease refuses a change that would undo all decisions of a user above the caller
// (who): the User's next token may carry more than the caller can grant, even if the
// last one carried less.
func mayRelease(who sandbox.Identity, before, after sandbox.User) error {
	if before.DecidedBy.Above(who.Role) && after.DecidedBy == "" {
		return sandbox.Errorf(sandbox.Denied, "the user's role was set by a role above yours, and cannot be released: give the user a role")
	}
	return nil
}

// settle makes a change effective, and audits it in the User's Tenant's log if the
// caller is of another Tenant.
func (s *Service) settle(ctx context.Context, who sandbox.Identity, u sandbox.User, operation string) error {
	if u.State == sandbox.UserRemoved {
		s.cfg.Revoked()
	}
	err := s.refresh(context.WithoutCancel(ctx))
	if s.cfg.Audit == nil || who.Tenant == u.Tenant {
		return err
	}
	_, told := s.cfg.Audit.AppendAudit(context.WithoutCancel(ctx), sandbox.AuditEntry{
		At: identity.Now(), Tenant: u.Tenant, User: "operator", Role: who.Role, Operation: operation, Target: sandbox.AuditText(u.ID),
	})
	return errors.Join(err, told)
}

// Get returns a User; NotFound if the Tenant has no such User, or they were removed.
func (s *Service) Get(ctx context.Context, tenant sandbox.TenantID, id string) (sandbox.User, error) {
	if err := errors.Join(tenant.Check(), s.flush(ctx)); err != nil {
		return sandbox.User{}, err
	}
	u, err := s.cfg.Store.UserByID(ctx, tenant, id)
	if err == nil && u.State == sandbox.UserRemoved {
		return sandbox.User{}, sandbox.Errorf(sandbox.NotFound, "no such user")
	}
	return u, err
}

// List returns a page of a Tenant's Users.
func (s *Service) List(ctx context.Context, tenant sandbox.TenantID, query sandbox.UserQuery) (sandbox.UserPage, error) {
	switch query.State {
	case "", sandbox.UserActive, sandbox.UserSuspended, sandbox.UserRemoved:
	default:
		return sandbox.UserPage{}, sandbox.Errorf(sandbox.Invalid, "state must be %q, %q or %q", sandbox.UserActive, sandbox.UserSuspended, sandbox.UserRemoved)
	}
	if err := errors.Join(tenant.Check(), s.flush(ctx)); err != nil {
		return sandbox.UserPage{}, err
	}
	return s.cfg.Store.ListUsers(ctx, tenant, query)
}

// Change changes a User and returns them. It applies here at once and elsewhere within 1
// s, and cancels in-flight requests that the User may no longer make. NotFound without a
// record; Denied if the User's Role is, or would become, above who's; Conflict for
// suspending oneself and, except for operators, for leaving the Tenant without an owner.
func (s *Service) Change(ctx context.Context, who sandbox.Identity, tenant sandbox.TenantID, id string, change sandbox.UserChange) (sandbox.User, error) {
	return s.change(ctx, who, tenant, id, opChange, func(u sandbox.User) (sandbox.User, error) {
		after, err := change.Apply(u)
		switch {
		case err != nil:
			return u, err
		case after.State == sandbox.UserSuspended && isSelf(who, u):
			return u, sandbox.Errorf(sandbox.Conflict, "you cannot suspend yourself: you could not reactivate yourself")
		case change.Role != nil:
			return after, mayGive(who, after)
		}
		return after, nil
	})
}

// Remove removes a User and revokes their Keys: all their tokens, also later ones, are
// refused until another user makes them a User again. It fails as Change does.
func (s *Service) Remove(ctx context.Context, who sandbox.Identity, tenant sandbox.TenantID, id string) error {
	_, err := s.change(ctx, who, tenant, id, opRemove, func(u sandbox.User) (sandbox.User, error) {
		if isSelf(who, u) {
			return u, sandbox.Errorf(sandbox.Conflict, "you cannot remove yourself: ask another admin")
		}
		u.Name, u.Email, u.Given, u.State = "", "", "", sandbox.UserRemoved
		return u, nil
	})
	return err
}

func isSelf(who sandbox.Identity, u sandbox.User) bool {
	return who.Tenant == u.Tenant && who.Person == u.ID
}

// change writes the result of apply; it retries on concurrent changes.
func (s *Service) change(ctx context.Context, who sandbox.Identity, tenant sandbox.TenantID, id, operation string, apply func(sandbox.User) (sandbox.User, error)) (sandbox.User, error) {
	for try := 1; ; try++ {
		u, err := s.Get(ctx, tenant, id)
		if err != nil {
			return sandbox.User{}, err
		}
		if u.Role().Above(who.Role) {
			return sandbox.User{}, sandbox.Errorf(sandbox.Denied, "the user is of a role above yours")
		}
		after, err := apply(u)
		if err != nil {
			return sandbox.User{}, err
		}
		after = after.Decided(u, who.Role)
		if err := mayRelease(who, u, after); err != nil {
			return sandbox.User{}, err
		}
		u, err = s.cfg.Store.UpdateUser(ctx, after, who.Role != sandbox.RoleOperator)
		if try < maxTries && errors.Is(err, sandbox.Conflict) && !errors.Is(err, sandbox.ErrLastOwner) {
			continue
		}
		if err != nil {
			return sandbox.User{}, err
		}
		return u, s.settle(ctx, who, u, operation)
	}
}
