package stores

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/scopefs/scopefs/fs/quota"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/credential"
	dialing "github.com/scopefs/scopefs/internal/dial"
	"github.com/scopefs/scopefs/internal/stores/wire"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/share"
	"github.com/scopefs/scopefs/tools/kv"
)

// callTime is how long a call may take beside the bound of its driver.
const callTime = time.Second

// kv adds the key-value store.
func (s *Stores) kv(config *config.KVStore) error {
	if config == nil {
		return nil
	}
	if config.Password != nil && !config.TLS && !onHost(config.Redis) {
		return errors.New("kv: password: it would be readable on the way: write tls: true")
	}
	kind := "sqlite"
	if config.Redis != "" {
		kind = "redis"
		network := "tcp"
		if strings.HasPrefix(config.Redis, "/") {
			network = "unix"
		}
		s.drivers.serve(wire.KV, config.Password, only(network, config.Redis))
	}
	s.drivers.settings.KV = config
	one := remoteKV{drivers: s.drivers}
	one.disk = s.bound(&disk{store: "kv", measure: one.size})
	list, err := kv.New(one)
	if err != nil {
		return err
	}
	s.add(store{name: "kv", kind: kind, tools: list, check: one.Ping, held: one.size, forget: one.forget})
	s.tools = append(s.tools, list...)
	return nil
}

// only dials one address, whatever a driver asks for.
func only(network, address string) dial {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dialing.Context(ctx, network, address)
	}
}

// serve lets a driver have a credential and connections.
func (p *drivers) serve(name string, from *credential.Source, to dial) {
	p.dials[name], p.secrets[name] = to, from
}

// onHost reports whether an address is of this host: a socket, or loopback.
func onHost(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err != nil || credential.Loopback(host)
}

// remoteKV is the key-value store as its driver serves it.
type remoteKV struct {
	*drivers
	disk *disk
}

// size returns what the store holds for an agent.
func (r remoteKV) size(ctx context.Context, agent scope.ID) (use quota.Use, err error) {
	if r.settings.KV.Redis == "" && !r.exists(wire.KVFile) {
		return use, nil
	}
	part, err := share.Keys.Apply(agent, "")
	if err == nil {
		use.Bytes, err = call(ctx, r.drivers, kv.Patience+callTime, wire.KVSize, part)
	}
	return use, err
}

// forget removes what the store holds for an agent.
func (r remoteKV) forget(ctx context.Context, agent scope.ID) error {
	part, err := share.Keys.Apply(agent, "")
	for more := true; err == nil && more; {
		more, err = call(ctx, r.drivers, kv.Patience+callTime, wire.KVForget, part)
	}
	return err
}

// change makes a change by which an agent's part grows by so many bytes at most.
func (r remoteKV) change(ctx context.Context, c kv.Change, grows int, do func() error) error {
	return r.disk.change(ctx, scope.ID(strings.TrimSuffix(c.Part, ":")), quota.Use{Bytes: int64(grows)}, do)
}

// Get returns the entry of a name.
func (r remoteKV) Get(ctx context.Context, name string) (kv.Entry, error) {
	return call(ctx, r.drivers, kv.Patience+callTime, wire.KVGet, name)
}

// Plain returns a string of another program; see kv.Store.
func (r remoteKV) Plain(ctx context.Context, names ...string) (kv.Entry, bool, error) {
	if r.settings.KV.Redis == "" {
		return kv.Entry{}, false, nil
	}
	e, err := call(ctx, r.drivers, kv.Patience+callTime, wire.KVPlain, names)
	return e.Entry, e.Found, err
}

// Set replaces the value of an entry.
func (r remoteKV) Set(ctx context.Context, c kv.Change, value string, ttl time.Duration) (e kv.Entry, err error) {
	err = r.change(ctx, c, len(c.Name)+len(value), func() (err error) {
		e, err = call(ctx, r.drivers, kv.Patience+callTime, wire.KVSet, wire.KVChange{Change: c, Value: value, TTL: ttl})
		return err
	})
	return e, err
}

// Delete removes an entry.
func (r remoteKV) Delete(ctx context.Context, c kv.Change) (found bool, err error) {
	err = r.change(ctx, c, 0, func() (err error) {
		found, err = call(ctx, r.drivers, kv.Patience+callTime, wire.KVDelete, c)
		return err
	})
	return found, err
}

// List returns a page of entries.
func (r remoteKV) List(ctx context.Context, prefix, after string, limit int) ([]kv.Entry, string, error) {
	page, err := call(ctx, r.drivers, kv.Patience+callTime, wire.KVList, wire.KVListing{Prefix: prefix, After: after, Limit: limit})
	return page.Entries, page.Next, err
}

// Ping checks that the store works. It makes no file: a store that has none is not opened.
func (r remoteKV) Ping(ctx context.Context) error {
	if r.settings.KV.Redis == "" && !r.exists(wire.KVFile) {
		return nil
	}
	return ping(ctx, r.drivers, wire.KVPing)
}
