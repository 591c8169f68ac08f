// Package postgres is the SQL store on a PostgreSQL server: a schema and roles for each agent, which it
// makes. What a statement may do, the rights of the agent's role decide, and nothing here.
package postgres

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lib/pq"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/driver"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sql"
	"github.com/scopefs/scopefs/tools/sql/engine"
)

const (
	loginTime = 10 * time.Second // for a session: a login, the making of the roles, and another login
	idleTime  = 30 * time.Second // after which a session that nobody uses ends
	maxIdle   = 16               // sessions of all agents
	grace     = 2 * time.Second  // for the server to end a statement
)

// Options are those of a Store.
type Options struct {
	*config.SQLStore
	driver.Reach             // Secret is the administrator's password
	TLS          *tls.Config // nil: none
}

// Store is the store on one server. Its methods are safe for concurrent use.
type Store struct {
	Options
	limits engine.Config
	admin  chan struct{} // held by the session of the administrator

	mu     sync.Mutex
	idle   []*session // the one that was used last is at the end
	closed bool
}

// Open returns a store. The server need not run yet.
func Open(o Options) *Store {
	limits := sql.Limits{FileBytes: o.Size, Timeout: o.Timeout}.Config()
	return &Store{Options: o, limits: limits, admin: make(chan struct{}, 1)}
}

// Close ends all sessions that nobody uses, and each other one after its call.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, one := range s.idle {
		one.idle.Stop()
		one.close()
	}
	s.idle = nil
	return nil
}

// Ping checks that the server works and that the administrator can make roles.
func (s *Store) Ping(ctx context.Context) error {
	return s.asAdmin(ctx, func(*session) error { return nil })
}

// Do executes a request of the agent that has a role. An error of the statement is in the reply.
func (s *Store) Do(ctx context.Context, role string, r *engine.Request) (engine.Reply, error) {
	begun, cancel := context.WithTimeout(ctx, loginTime)
	defer cancel()
	one, err := s.begin(begun, role, r)
	if err != nil {
		return engine.Reply{}, unreachable(err)
	}
	bounded, cancel := context.WithTimeout(ctx, s.limits.Timeout+grace)
	defer cancel()
	defer context.AfterFunc(bounded, one.close)()
	reply, err := one.run(r, s.limits, s.Drop)
	if err != nil {
		e := one.refusal(err, s.limits)
		switch {
		case e != nil:
			reply.Error = e
		case ctx.Err() != nil:
			err = ctx.Err()
		case bounded.Err() != nil:
			err = unreachable(bounded.Err())
		default:
			err = lost(err)
		}
		if e == nil {
			one.close()
			return engine.Reply{}, err
		}
	}
	if one.dirty || err != nil && one.reset("ROLLBACK") != nil {
		one.close()
		return reply, nil
	}
	s.put(one)
	return reply, nil
}

// begin returns a session with a transaction for a request. One that ended while it was idle is replaced, and
// roles that do not exist, or not as they should, are made.
func (s *Store) begin(ctx context.Context, role string, r *engine.Request) (*session, error) {
	made := false
	for {
		one, err := s.take(ctx, role)
		old := err == nil && one.used
		if err == nil {
			stop := context.AfterFunc(ctx, one.close)
			err = one.exec(beginning(role, r, s.limits))
			if !stop() && err == nil {
				err = ctx.Err()
			}
			if err == nil {
				return one, nil
			}
			one.close()
		}
		e, answered := errors.AsType[*pq.Error](err)
		switch {
		case ctx.Err() != nil:
			return nil, err
		case old:
		case !answered || made || !missing(e):
			return nil, err
		default:
			secret, err := s.Secret(ctx)
			if err == nil {
				err = s.provide(ctx, role, passwordOf(secret.Reveal(), loginOf(role)))
			}
			if err != nil {
				return nil, err
			}
			made = true
		}
	}
}

// missing reports whether the administrator should make an agent's roles: a login or SET ROLE
// failed.
func missing(e *pq.Error) bool {
	return e.Code.Class() == "28" || e.Code == "22023" || e.Code == "42501" || e.Code == "42704"
}

// take returns a session of an agent's role.
func (s *Store) take(ctx context.Context, role string) (*session, error) {
	s.mu.Lock()
	for i := len(s.idle) - 1; i >= 0; i-- {
		if one := s.idle[i]; one.role == role {
			s.idle = append(s.idle[:i], s.idle[i+1:]...)
			one.idle.Stop()
			s.mu.Unlock()
			one.used = true
			return one, nil
		}
	}
	s.mu.Unlock()
	secret, err := s.Secret(ctx)
	if err != nil {
		return nil, fmt.Errorf("password: %w", err)
	}
	one, err := s.login(ctx, loginOf(role), passwordOf(secret.Reveal(), loginOf(role)))
	if err == nil {
		one.role = role
	}
	return one, err
}

// put keeps a session for the agent's next call.
func (s *Store) put(one *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		one.close()
		return
	}
	if len(s.idle) == maxIdle {
		s.idle[0].idle.Stop()
		s.idle[0].close()
		s.idle = s.idle[1:]
	}
	one.idle = time.AfterFunc(idleTime, func() { s.expire(one) })
	s.idle = append(s.idle, one)
}

// expire ends a session, unless a call has taken it.
func (s *Store) expire(one *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.idle {
		if s.idle[i] == one {
			s.idle = append(s.idle[:i], s.idle[i+1:]...)
			one.close()
			return
		}
	}
}

// unreachable returns the error of a call that has no session.
func unreachable(err error) error {
	e := tools.Errorf(tools.Unavailable, "the database cannot be reached")
	e.Hint = "ask the operator: scopefs stores has the reason"
	if answer, ok := errors.AsType[*pq.Error](err); ok && answer.Code.Class() == "53" {
		e.Message, e.Hint = "the database has too many connections", "try again later"
	}
	return e.Because(err)
}

// lost returns the error of a call whose session ended.
func lost(err error) error {
	return tools.Errorf(tools.Unavailable, "the database's server ended the connection").
		Suggest("call again; of a change, look first whether it was made").Because(err)
}
