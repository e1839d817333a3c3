package sqlstore

import (
	"context"
	"database/sql"
	"encoding/base64"
	"errors"

	"github.com/cloud-sandbox/cloud-sandbox"
)

var userTable = newTable("users", func(u *sandbox.User, c *columns) {
	c.add("tenant", (*string)(&u.Tenant))
	c.add("id", &u.ID)
	c.add("name", &u.Name)
	c.add("email", &u.Email)
	c.add("source", (*string)(&u.Source))
	c.add("issuer", &u.Issuer)
	c.add("given", (*string)(&u.Given))
	c.add("said", (*string)(&u.TokenRole))
	c.add("state", (*string)(&u.State))
	c.add("created_at", (*moment)(&u.CreatedAt))
	c.add("seen_at", (*moment)(&u.SeenAt))
	c.add("version", &u.Version)
	c.add("decided_by", (*string)(&u.DecidedBy))
})

var (
	replaceUser = userTable.replacing("tenant", "id")
	// decideUser writes others' decisions about a User. The record still has the version
	// that it was read with.
	decideUser = userTable.command(`UPDATE users SET name = $name, email = $email, given = $given, state = $state, decided_by = $decided_by,
		version = version + 1 WHERE tenant = $tenant AND id = $id`)
	noteUser = userTable.command(`UPDATE users SET seen_at = CASE WHEN seen_at < $seen_at THEN $seen_at ELSE seen_at END, said = $said,
		name = CASE WHEN $name <> '' THEN $name ELSE name END, email = CASE WHEN $email <> '' THEN $email ELSE email END,
		version = version + CASE WHEN said <> $said THEN 1 ELSE 0 END
		WHERE tenant = $tenant AND id = $id`)
)

// userStatements are the writer's prepared statements for users.
type userStatements struct {
	putUser, noteUser, updateUser, userToChange, countUsers, forgetUser *sql.Stmt
	otherOwners, dropKeysOf, dropUsers, usersChange                     *sql.Stmt
}

func (s *userStatements) all(d *dialect) []prepared {
	return []prepared{
		{&s.putUser, replaceUser.text},
		{&s.noteUser, noteUser.text},
		{&s.userToChange, userTable.record + `WHERE tenant = ? AND id = ?`},
		{&s.updateUser, decideUser.text},
		{&s.countUsers, `SELECT count(*) FROM users WHERE tenant = ?`},
		{&s.forgetUser, `DELETE FROM users WHERE (tenant, id) = (SELECT tenant, id FROM ` + d.forgettable + `
			WHERE tenant = ? AND state = 'active' AND given = '' AND source <> 'invited' ORDER BY seen_at LIMIT 1)`},
		{&s.otherOwners, `SELECT count(*) FROM users WHERE tenant = ? AND id <> ? AND state = 'active'
			AND CASE WHEN given <> '' THEN given ELSE said END IN ('owner', 'operator')`},
		{&s.dropKeysOf, `DELETE FROM keys WHERE tenant = ? AND created_by = ?`},
		{&s.dropUsers, `DELETE FROM users WHERE tenant = ?`},
		{&s.usersChange, `UPDATE users_changed SET n = n + 1`},
	}
}

// userQueries are the prepared statements of reading connections.
type userQueries struct{ user, users, usersChanged *sql.Stmt }

func (q *userQueries) all() []prepared {
	return []prepared{
		{&q.user, userTable.record + `WHERE tenant = ? AND id = ?`},
		{&q.users, userTable.record + `WHERE tenant = ?1 AND id > ?2 AND (?3 = '' AND state <> 'removed' OR state = ?3) ORDER BY id LIMIT ?4`},
		{&q.usersChanged, `SELECT n FROM users_changed`},
	}
}

// InsertUser implements sandbox.UserStore.
func (s *Store) InsertUser(ctx context.Context, u sandbox.User) (sandbox.User, error) {
	err := s.writer.write(ctx, func(st *statements) error {
		switch there, err := userIn(st, u.Tenant, u.ID); {
		case err == nil && (there.State != sandbox.UserRemoved || there.Version != u.Version):
			return sandbox.Errorf(sandbox.Conflict, "a user with this ID exists already")
		case err == nil:
		case !errors.Is(err, sandbox.NotFound):
			return err
		default:
			room, err := roomForUser(st, u.Tenant)
			if err != nil {
				return err
			}
			if !room {
				return sandbox.Errorf(sandbox.Exhausted, "the tenant has %d users, removed ones too, and no more can be kept", sandbox.MaxUsers)
			}
		}
		u.Version++
		if err := putUser(st, u); err != nil {
			return err
		}
		return userChanged(st)
	})
	return u, err
}

// userIn reads a record in the writer's transaction, or NotFound.
func userIn(st *statements, tenant sandbox.TenantID, id string) (sandbox.User, error) {
	return one(st.userToChange.QueryRow(string(tenant), id), userTable.scan, noUser)
}

func noUser() error { return sandbox.Errorf(sandbox.NotFound, "no such user") }

// putUser writes a record.
func putUser(st *statements, u sandbox.User) error {
	_, err := replaceUser.exec(st.putUser, &u)
	return err
}

// userChanged records that a decision about a User was written. A visit is no such
// change: a record that NoteUsers adds admits the person just as a missing record does.
func userChanged(st *statements) error {
	_, err := st.usersChange.Exec()
	return err
}

// roomForUser reports whether a Tenant may have one more User; if it is full, it forgets
// a User if it can.
func roomForUser(st *statements, tenant sandbox.TenantID) (bool, error) {
	var have int
	if err := st.countUsers.QueryRow(string(tenant)).Scan(&have); err != nil || have < sandbox.MaxUsers {
		return err == nil, err
	}
	result, err := st.forgetUser.Exec(string(tenant))
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n > 0, err
}

// NoteUsers implements sandbox.UserStore.
func (s *Store) NoteUsers(ctx context.Context, all []sandbox.User) error {
	return s.writer.write(ctx, func(st *statements) error {
		for _, u := range all {
			if err := noteOne(st, u); err != nil {
				return err
			}
		}
		return nil
	})
}

func noteOne(st *statements, u sandbox.User) error {
	there, err := userIn(st, u.Tenant, u.ID)
	if errors.Is(err, sandbox.NotFound) {
		room, err := roomForUser(st, u.Tenant)
		if err != nil || !room {
			return err
		}
		u.Version = 1
		return putUser(st, u)
	}
	if err != nil {
		return err
	}
	if told := there.WithTokenRole(u.TokenRole); told != there {
		there = told
		if err := errors.Join(updateUser(st, there), userChanged(st)); err != nil {
			return err
		}
	}
	if there.State == sandbox.UserRemoved {
		return nil
	}
	_, err = noteUser.exec(st.noteUser, &u)
	return err
}

// UserByID implements sandbox.UserStore.
func (s *Store) UserByID(ctx context.Context, tenant sandbox.TenantID, id string) (sandbox.User, error) {
	return one(s.query.user.QueryRowContext(ctx, string(tenant), id), userTable.scan, noUser)
}

// ListUsers implements sandbox.UserStore.
func (s *Store) ListUsers(ctx context.Context, tenant sandbox.TenantID, query sandbox.UserQuery) (sandbox.UserPage, error) {
	limit, err := pageLimit(query.Limit)
	if err != nil {
		return sandbox.UserPage{}, err
	}
	after, err := base64.RawURLEncoding.DecodeString(query.Cursor)
	if err != nil || query.Cursor != "" && (sandbox.User{ID: string(after)}).Check() != nil {
		return sandbox.UserPage{}, sandbox.Errorf(sandbox.Invalid, "the cursor is not one that a list returned")
	}
	// One extra row shows whether there is a next page.
	all, err := collect(userTable.scan)(s.query.users.QueryContext(ctx, string(tenant), string(after), string(query.State), limit+1))
	if err != nil {
		return sandbox.UserPage{}, err
	}
	all, last := cutPage(all, limit)
	page := sandbox.UserPage{Users: all}
	if last != nil {
		page.Next = base64.RawURLEncoding.EncodeToString([]byte(last.ID))
	}
	return page, nil
}

// UpdateUser implements sandbox.UserStore.
func (s *Store) UpdateUser(ctx context.Context, u sandbox.User, keepOwner bool) (sandbox.User, error) {
	err := s.writer.write(ctx, func(st *statements) error {
		there, err := userIn(st, u.Tenant, u.ID)
		if err != nil {
			return err
		}
		if there.Version != u.Version {
			return sandbox.Errorf(sandbox.Conflict, "the user was changed meanwhile")
		}
		if keepOwner && there.Owns() && !u.Owns() {
			var others int
			if err := st.otherOwners.QueryRow(string(u.Tenant), u.ID).Scan(&others); err != nil {
				return err
			}
			if others == 0 {
				return sandbox.ErrLastOwner
			}
		}
		if u.State == sandbox.UserRemoved {
			if _, err := st.dropKeysOf.Exec(string(u.Tenant), u.ID); err != nil {
				return err
			}
		}
		if err := updateUser(st, u); err != nil {
			return err
		}
		return userChanged(st)
	})
	if err != nil {
		return sandbox.User{}, err
	}
	u.Version++
	return u, nil
}

// updateUser writes others' decisions about a User.
func updateUser(st *statements, u sandbox.User) error {
	_, err := decideUser.exec(st.updateUser, &u)
	return err
}

// UsersChanged implements sandbox.UserStore.
func (s *Store) UsersChanged(ctx context.Context) (int64, error) {
	var n int64
	err := s.query.usersChanged.QueryRowContext(ctx).Scan(&n)
	return n, classify(err)
}
