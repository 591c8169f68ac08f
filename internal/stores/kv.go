package stores

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/kv"
)

// kv adds the key-value store.
func (s *Stores) kv(config *config.KVStore, state string) error {
	if config == nil {
		return nil
	}
	if config.Password != nil && !config.TLS && !onHost(config.Redis) {
		return errors.New("kv: password: it would be readable on the way: write tls: true")
	}
	limits := kv.Limits{Keys: config.Keys, Bytes: config.Size}
	kind, one := "sqlite", &lazyKV{file: filepath.Join(state, "kv.db")}
	one.open = func() (kv.Store, error) { return kv.OpenSQLite(one.file, limits) }
	if config.Redis != "" {
		kind, one.file = "redis", ""
		one.open = func() (kv.Store, error) { return kv.OpenRedis(redisOptions(config), limits) }
	}
	list, err := kv.New(one)
	if err != nil {
		return err
	}
	s.add(store{name: "kv", kind: kind, tools: list, check: one.Ping, close: one.Close})
	s.tools = append(s.tools, list...)
	return nil
}

// onHost reports whether an address is of this host: a socket, or loopback.
func onHost(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip, ipErr := netip.ParseAddr(host)
	return err != nil || host == "localhost" || ipErr == nil && ip.IsLoopback()
}

func redisOptions(config *config.KVStore) kv.RedisOptions {
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

// lazyKV is a key-value store that is opened when it is first used.
type lazyKV struct {
	lazy[kv.Store]
	file string // of an embedded store; "": it has none
}

// Get returns the entry of a name.
func (l *lazyKV) Get(ctx context.Context, name string) (kv.Entry, error) {
	store, err := l.get(ctx)
	if err != nil {
		return kv.Entry{}, err
	}
	return store.Get(ctx, name)
}

// Plain returns a string of another program; see kv.Plainer.
func (l *lazyKV) Plain(ctx context.Context, names ...string) (e kv.Entry, found bool, err error) {
	store, err := l.get(ctx)
	if err != nil {
		return e, false, err
	}
	if shared, ok := store.(kv.Plainer); ok {
		return shared.Plain(ctx, names...)
	}
	return e, false, nil
}

// Set replaces the value of an entry.
func (l *lazyKV) Set(ctx context.Context, c kv.Change, value string, ttl time.Duration) (kv.Entry, error) {
	store, err := l.get(ctx)
	if err != nil {
		return kv.Entry{}, err
	}
	return store.Set(ctx, c, value, ttl)
}

// Delete removes an entry.
func (l *lazyKV) Delete(ctx context.Context, c kv.Change) (bool, error) {
	store, err := l.get(ctx)
	if err != nil {
		return false, err
	}
	return store.Delete(ctx, c)
}

// List returns a page of entries.
func (l *lazyKV) List(ctx context.Context, prefix, after string, limit int) ([]kv.Entry, string, error) {
	store, err := l.get(ctx)
	if err != nil {
		return nil, "", err
	}
	return store.List(ctx, prefix, after, limit)
}

// Ping checks that the store works. It makes no file: an embedded store that is not open
// is checked by reading its file. The error is for the operator.
func (l *lazyKV) Ping(ctx context.Context) error {
	store, ok := l.opened()
	if !ok && l.file != "" {
		return kv.CheckFile(ctx, l.file)
	}
	err := error(nil)
	if !ok {
		store, err = l.get(ctx)
	}
	if err == nil {
		err = store.Ping(ctx)
	}
	if e, ok := errors.AsType[*tools.Error](err); ok && e.Unwrap() != nil {
		return e.Unwrap()
	}
	return err
}
