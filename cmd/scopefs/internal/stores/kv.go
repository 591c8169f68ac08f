package stores

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"path/filepath"
	"sync"
	"time"

	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/kv"
)

// kv adds the key-value store.
func (s *Stores) kv(config *agents.KVStore, state string) error {
	if config == nil {
		return nil
	}
	limits := kv.Limits{Keys: config.Keys, Bytes: config.Size}
	kind, lazy := "sqlite", &lazyKV{open: func() (kv.Store, error) { return kv.OpenSQLite(filepath.Join(state, "kv.db"), limits) }}
	if config.Redis != "" {
		kind, lazy.open = "redis", func() (kv.Store, error) { return kv.OpenRedis(redisOptions(config), limits) }
	}
	list, err := kv.New(lazy)
	if err != nil {
		return err
	}
	s.add(store{name: "kv", kind: kind, tools: list, check: lazy.Ping, close: lazy.Close})
	s.tools = append(s.tools, list...)
	return nil
}

func redisOptions(config *agents.KVStore) kv.RedisOptions {
	o := kv.RedisOptions{Address: config.Redis, Username: config.User}
	if config.Password != nil {
		o.Password = func(ctx context.Context) (string, error) {
			secret, err := config.Password.Read(ctx)
			return secret.Reveal(), err
		}
	}
	if host, _, err := net.SplitHostPort(config.Redis); err == nil && config.TLS {
		o.TLS = &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
	}
	return o
}

// lazyKV opens a store when it is first used, and again at the next use if that
// failed.
type lazyKV struct {
	open func() (kv.Store, error)

	mu     sync.Mutex
	store  kv.Store
	closed bool
}

func (l *lazyKV) get() (kv.Store, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.store != nil {
		return l.store, nil
	}
	if l.closed {
		return nil, tools.Errorf(tools.Unavailable, "the store is closed")
	}
	store, err := l.open()
	if err != nil {
		e := tools.Errorf(tools.Unavailable, "the store cannot be opened")
		e.Hint = "ask the operator: scopefs stores has the reason"
		return nil, e.Because(err)
	}
	l.store = store
	return store, nil
}

// Get returns the entry of a name.
func (l *lazyKV) Get(ctx context.Context, name string) (kv.Entry, error) {
	store, err := l.get()
	if err != nil {
		return kv.Entry{}, err
	}
	return store.Get(ctx, name)
}

// Set replaces the value of an entry.
func (l *lazyKV) Set(ctx context.Context, c kv.Change, value string, ttl time.Duration) (kv.Entry, error) {
	store, err := l.get()
	if err != nil {
		return kv.Entry{}, err
	}
	return store.Set(ctx, c, value, ttl)
}

// Delete removes an entry.
func (l *lazyKV) Delete(ctx context.Context, c kv.Change) (bool, error) {
	store, err := l.get()
	if err != nil {
		return false, err
	}
	return store.Delete(ctx, c)
}

// List returns a page of entries.
func (l *lazyKV) List(ctx context.Context, prefix, after string, limit int) ([]kv.Entry, string, error) {
	store, err := l.get()
	if err != nil {
		return nil, "", err
	}
	return store.List(ctx, prefix, after, limit)
}

// Ping opens the store and checks that it works. Its error is for the operator.
func (l *lazyKV) Ping(ctx context.Context) error {
	store, err := l.get()
	if err == nil {
		err = store.Ping(ctx)
	}
	if e, ok := errors.AsType[*tools.Error](err); ok && e.Unwrap() != nil {
		return e.Unwrap()
	}
	return err
}

// Close closes the store if it is open. It stays closed.
func (l *lazyKV) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.store == nil {
		return nil
	}
	return l.store.Close()
}
