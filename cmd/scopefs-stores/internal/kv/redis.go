package kv

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/scopefs/scopefs/internal/driver"
	"github.com/scopefs/scopefs/tools"
	door "github.com/scopefs/scopefs/tools/kv"
)

// RedisOptions hold the address of a Redis or Valkey server and the credentials for it.
type RedisOptions struct {
	Address      string // host:port, or the absolute path of a socket
	Username     string
	TLS          *tls.Config // nil: no TLS
	driver.Reach             // Secret is called for each new connection
}

// Redis is a [Store] on a server of Redis (6.2 and newer) or Valkey. It does not
// work with Redis Cluster.
//
// An entry is a hash with the fields v (value), n (version) and x (expiry), under
// its name. Three more keys describe a part. No name is one of them, because a
// name is longer than the part and has two hexadecimal digits after each '%':
//
//	a:    sorted set of the names, for pages
//	a:%t  sorted set of the names that expire, by time
//	a:%s  hash of the sizes of entries by name, with their sum under "" unless
//	      entries were removed since
//
// A change watches the entry and the sizes of its part, and is one transaction.
// So a change needs no script, and several daemons may share a server. A version
// is the server's time in microseconds. It does not tell an agent how much others
// write, and it does not start again after a server lost its data.
type Redis struct {
	client   *redis.Client
	limits   Limits
	password atomic.Pointer[string] // the last one
}

// network bounds a dial, a read and a write.
const network = 2 * time.Second

// expiredAtOnce bounds the expired entries that one transaction removes.
const expiredAtOnce = 256

// OpenRedis returns a store on a server. The server need not run yet.
func OpenRedis(o RedisOptions, limits Limits) (*Redis, error) {
	protocol := "unix"
	if !strings.HasPrefix(o.Address, "/") {
		protocol = "tcp"
		if _, _, err := net.SplitHostPort(o.Address); err != nil {
			return nil, fmt.Errorf("key-value store: address %q: want host:port or an absolute path", o.Address)
		}
	}
	logging.Disable() // it would print each failed dial; the log of calls has the causes
	r := &Redis{limits: limits.OrDefault()}
	r.client = redis.NewClient(&redis.Options{
		Network: protocol, Addr: o.Address, Protocol: 2,
		CredentialsProviderContext: func(ctx context.Context) (string, string, error) {
			if o.Secret == nil {
				return o.Username, "", nil
			}
			secret, err := o.Secret(ctx)
			password := secret.Reveal()
			r.password.Store(&password)
			return o.Username, password, err
		},
		Dialer: func(ctx context.Context, network, address string) (net.Conn, error) {
			return o.dial(ctx, network, address)
		},
		DialTimeout: network, ReadTimeout: network, WriteTimeout: network, ContextTimeoutEnabled: true,
		MaxRetries: -1, DialerRetries: 1, // a command that was sent is never sent again
		PoolSize: 16, MaxActiveConns: 16, PoolTimeout: network,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	return r, nil
}

// Get returns an entry.
func (r *Redis) Get(ctx context.Context, name string) (Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, door.Patience)
	defer cancel()
	fields, err := r.client.HMGet(ctx, name, "n", "x", "v").Result()
	if redis.HasErrorPrefix(err, "WRONGTYPE") { // see Plain
		return Entry{}, door.NotFound()
	}
	if err != nil {
		return Entry{}, r.failed(err)
	}
	if len(fields) != 3 {
		return Entry{}, r.failed(errNoEntry)
	}
	e, found, err := redisEntry(name, fields[:2])
	if err != nil {
		return Entry{}, r.failed(err)
	}
	value, ok := fields[2].(string)
	if !found {
		return Entry{}, door.NotFound()
	} else if !ok {
		return Entry{}, r.failed(errNoEntry)
	}
	e.Value, e.Bytes = value, int64(len(value))
	return e, nil
}

// Plain returns the first string that another program has set under one of names.
func (r *Redis) Plain(ctx context.Context, names ...string) (e Entry, found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, door.Patience)
	defer cancel()
	for _, name := range names {
		value, err := r.client.Get(ctx, name).Result()
		switch {
		case errors.Is(err, redis.Nil), redis.HasErrorPrefix(err, "WRONGTYPE"), redis.IsPermissionError(err): // without the right to GET there are none
			continue
		case err != nil:
			return Entry{}, false, r.failed(err)
		case len(value) > door.MaxValue || !utf8.ValidString(value):
			return Entry{}, false, tools.Errorf(tools.TooLarge,
				"the value was set by another program, and is no text of at most %d bytes", door.MaxValue)
		}
		return Entry{Name: name, Value: value, Bytes: int64(len(value))}, true, nil
	}
	return Entry{}, false, nil
}

// Set replaces an entry.
func (r *Redis) Set(ctx context.Context, c Change, value string, ttl time.Duration) (out Entry, err error) {
	err = r.change(ctx, c, func(ctx context.Context, tx *redis.Tx, part *redisPart) error {
		if err := c.Check(part.version); err != nil {
			return err
		}
		size := int64(len(c.Name) + len(value))
		keys := part.keys
		if part.size == 0 {
			keys++
		}
		sum, err := part.sumOf(ctx, tx, c.Part)
		if err != nil {
			return err
		}
		sum += size - part.size
		if err := r.limits.Allow(keys, sum); err != nil {
			return err
		}
		out = Entry{Name: c.Name, Bytes: int64(len(value)), Version: max(part.now.UnixMicro(), part.version+1)}
		expires := int64(0)
		if ttl > 0 {
			out.Expires = part.now.Add(ttl).Truncate(time.Millisecond)
			expires = out.Expires.UnixMilli()
		}
		return commit(ctx, tx, func(p redis.Pipeliner) {
			p.Del(ctx, c.Name)
			p.HSet(ctx, c.Name, "n", out.Version, "x", expires, "v", value)
			p.ZAdd(ctx, c.Part, redis.Z{Member: c.Name})
			if expires > 0 {
				p.PExpireAt(ctx, c.Name, out.Expires)
				p.ZAdd(ctx, expiries(c.Part), redis.Z{Member: c.Name, Score: float64(expires)})
			} else {
				p.ZRem(ctx, expiries(c.Part), c.Name)
			}
			p.HSet(ctx, sizes(c.Part), c.Name, size, "", sum)
		})
	})
	if err != nil {
		return Entry{}, err
	}
	return out, nil
}

// Delete removes an entry.
func (r *Redis) Delete(ctx context.Context, c Change) (found bool, err error) {
	err = r.change(ctx, c, func(ctx context.Context, tx *redis.Tx, part *redisPart) error {
		if err := c.Check(part.version); err != nil {
			return err
		}
		if found = part.version != 0; !found {
			return nil
		}
		err := commit(ctx, tx, forget(ctx, c.Part, c.Name))
		if redis.IsOOMError(err) && c.IfVersion == nil {
			// A server without memory refuses all transactions, and also the commands
			// that would set the entry meanwhile. Agents must be able to free memory.
			pipe := tx.Pipeline()
			forget(ctx, c.Part, c.Name)(pipe)
			_, err = pipe.Exec(ctx)
		}
		return err
	})
	return found && err == nil, err
}

// List returns a page of entries.
func (r *Redis) List(ctx context.Context, prefix, after string, limit int) ([]Entry, string, error) {
	ctx, cancel := context.WithTimeout(ctx, door.Patience)
	defer cancel()
	part, _, _ := strings.Cut(prefix, ":")
	from := "[" + prefix
	if after >= prefix {
		from = "(" + after
	}
	// No name holds the byte 0xFF.
	names, err := r.client.ZRangeByLex(ctx, part+":", &redis.ZRangeBy{Min: from, Max: "(" + prefix + "\xff", Count: int64(limit) + 1}).Result()
	if err != nil {
		return nil, "", r.failed(err)
	}
	next := ""
	if len(names) > limit {
		names = names[:limit]
		next = names[limit-1]
	}
	var fields []*redis.SliceCmd
	var lengths []*redis.IntCmd
	if len(names) > 0 {
		_, err = r.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, name := range names {
				if !strings.HasPrefix(name, prefix) {
					return door.Foreign(fmt.Errorf("%.100q", name))
				}
				fields = append(fields, p.HMGet(ctx, name, "n", "x"))
				lengths = append(lengths, p.HStrLen(ctx, name, "v"))
			}
			return nil
		})
	}
	if err != nil {
		return nil, "", r.failed(err)
	}
	var page []Entry
	for i, name := range names {
		e, found, err := redisEntry(name, fields[i].Val())
		if err != nil {
			return nil, "", r.failed(err)
		}
		if found { // else it has expired
			e.Bytes = lengths[i].Val()
			page = append(page, e)
		}
	}
	return page, next, nil
}

// Size returns the bytes of a part. Expired entries count until it changes.
func (r *Redis) Size(ctx context.Context, part string) (sum int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, door.Patience)
	defer cancel()
	err = r.client.Watch(ctx, func(tx *redis.Tx) error {
		fields, err := tx.HMGet(ctx, sizes(part), "").Result()
		if err != nil {
			return err
		}
		numbers, err := integers(fields)
		if err == nil {
			p := redisPart{sum: numbers[0]}
			sum, err = p.sumOf(ctx, tx, part)
		}
		return err
	})
	return sum, r.failed(err)
}

// Forget removes some entries of a part.
func (r *Redis) Forget(ctx context.Context, part string) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, door.Patience)
	defer cancel()
	err = r.client.Watch(ctx, func(tx *redis.Tx) error {
		names, err := tx.ZRangeByLex(ctx, part, &redis.ZRangeBy{Min: "-", Max: "+", Count: expiredAtOnce}).Result()
		if more = len(names) > 0; err != nil || !more {
			return err
		}
		if err := ours(part, names); err != nil {
			return err
		}
		return commit(ctx, tx, forget(ctx, part, names...))
	})
	return more, r.failed(err)
}

// ours returns an error if a part has a name of another one.
func ours(part string, names []string) error {
	for _, name := range names {
		if !strings.HasPrefix(name, part) || len(name) == len(part) {
			return door.Foreign(fmt.Errorf("%.100q", name))
		}
	}
	return nil
}

// Ping asks the server for an answer.
func (r *Redis) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, door.Patience)
	defer cancel()
	if err := r.client.Ping(ctx).Err(); err != nil {
		return r.failed(err)
	}
	return nil
}

// Close closes the connections.
func (r *Redis) Close() error { return r.client.Close() }

// redisPart is what a change must know of an agent's part.
type redisPart struct {
	now     time.Time // the server's
	version int64     // of the entry, 0: it does not exist
	size    int64     // of the entry, as the sum counts it
	keys    int64     // that have not expired
	sum     int64     // of the sizes, 0: it must be counted
}

// sumOf returns the sum of all sizes.
func (p *redisPart) sumOf(ctx context.Context, tx *redis.Tx, part string) (sum int64, err error) {
	if p.sum > 0 {
		return p.sum, nil
	}
	all, err := tx.HVals(ctx, sizes(part)).Result()
	if err != nil {
		return 0, err
	}
	for _, text := range all {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, errNoEntry
		}
		sum += n
	}
	return sum, nil
}

// change calls f in a transaction that fails if the part changes meanwhile, and
// repeats it then. A transaction that may have been made is never repeated.
func (r *Redis) change(ctx context.Context, c Change, f func(context.Context, *redis.Tx, *redisPart) error) error {
	ctx, cancel := context.WithTimeout(ctx, door.Patience)
	defer cancel()
	for {
		err := r.client.Watch(ctx, func(tx *redis.Tx) error {
			part, again, err := r.look(ctx, tx, c)
			if err != nil {
				return err
			} else if again {
				return redis.TxFailedErr
			}
			return f(ctx, tx, part)
		}, c.Name, sizes(c.Part))
		if !errors.Is(err, redis.TxFailedErr) {
			return r.failed(err)
		}
		select {
		case <-time.After(rand.N(4 * time.Millisecond)):
		case <-ctx.Done():
			return r.failed(ctx.Err())
		}
	}
}

// look reads what a change must know. If entries of the part have expired, it
// forgets some of them instead; the caller looks again then.
func (r *Redis) look(ctx context.Context, tx *redis.Tx, c Change) (part *redisPart, again bool, err error) {
	var now *redis.TimeCmd
	var entry, size *redis.SliceCmd
	var keys *redis.IntCmd
	var first *redis.ZSliceCmd
	_, err = tx.Pipelined(ctx, func(p redis.Pipeliner) error {
		now = p.Time(ctx)
		entry = p.HMGet(ctx, c.Name, "n", "x")
		size = p.HMGet(ctx, sizes(c.Part), c.Name, "")
		keys = p.ZCard(ctx, c.Part)
		first = p.ZRangeWithScores(ctx, expiries(c.Part), 0, 0)
		return nil
	})
	if err != nil {
		return nil, false, err
	}
	part = &redisPart{now: now.Val(), keys: keys.Val()}
	if z := first.Val(); len(z) > 0 && z[0].Score <= float64(part.now.UnixMilli()) {
		return nil, true, r.forgetExpired(ctx, tx, c.Part, part.now)
	}
	e, _, err := redisEntry(c.Name, entry.Val())
	if err != nil {
		return nil, false, err
	}
	part.version = e.Version
	numbers, err := integers(size.Val())
	if err != nil {
		return nil, false, err
	}
	part.size, part.sum = numbers[0], numbers[1]
	return part, false, nil
}

// forgetExpired removes what a part says about entries that have expired.
func (r *Redis) forgetExpired(ctx context.Context, tx *redis.Tx, part string, now time.Time) error {
	names, err := tx.ZRangeByScore(ctx, expiries(part),
		&redis.ZRangeBy{Min: "-inf", Max: strconv.FormatInt(now.UnixMilli(), 10), Count: expiredAtOnce}).Result()
	if err != nil || len(names) == 0 {
		return err
	}
	if err := ours(part, names); err != nil {
		return err
	}
	return commit(ctx, tx, forget(ctx, part, names...))
}

// forget returns the commands that remove entries, and the sum of sizes, which
// the next Set counts anew. None of them needs memory.
func forget(ctx context.Context, part string, names ...string) func(redis.Pipeliner) {
	members := make([]any, len(names))
	for i, name := range names {
		members[i] = name
	}
	return func(p redis.Pipeliner) {
		p.Del(ctx, names...)
		p.ZRem(ctx, part, members...)
		p.ZRem(ctx, expiries(part), members...)
		p.HDel(ctx, sizes(part), append([]string{""}, names...)...)
	}
}

// commit executes a transaction of tx. A server that refuses a command of a
// transaction discards it; the error is then that of the command.
func commit(ctx context.Context, tx *redis.Tx, queue func(redis.Pipeliner)) error {
	pipe := tx.TxPipeline()
	queue(pipe)
	commands, err := pipe.Exec(ctx)
	if redis.IsExecAbortError(err) {
		for _, c := range commands {
			if refused := c.Err(); !redis.IsExecAbortError(refused) {
				return cmp.Or(refused, err)
			}
		}
	}
	return err
}

func expiries(part string) string { return part + "%t" }
func sizes(part string) string    { return part + "%s" }

// errNoEntry is the error of a hash that this program did not write.
var errNoEntry = errors.New("the server holds something else under the name of an entry")

// redisEntry reads the fields n and x of an entry, which are nil if there is none.
func redisEntry(name string, fields []any) (e Entry, found bool, err error) {
	if len(fields) == 2 && fields[0] == nil && fields[1] == nil {
		return Entry{Name: name}, false, nil
	}
	numbers, err := integers(fields)
	if err != nil || len(numbers) != 2 || numbers[0] <= 0 || numbers[1] < 0 {
		return Entry{}, false, errNoEntry
	}
	e = Entry{Name: name, Version: numbers[0]}
	if ms := numbers[1]; ms > 0 {
		e.Expires = time.UnixMilli(ms)
	}
	return e, true, nil
}

// integers returns fields as numbers, 0 for what does not exist.
func integers(fields []any) ([]int64, error) {
	numbers := make([]int64, max(len(fields), 2))
	for i, field := range fields {
		if field == nil {
			continue
		}
		text, ok := field.(string)
		n, err := strconv.ParseInt(text, 10, 64)
		if !ok || err != nil {
			return nil, errNoEntry
		}
		numbers[i] = n
	}
	return numbers, nil
}

// tooOld reports whether an error is that of a server that does not know a command or its
// arguments.
func tooOld(text string) bool {
	begins := []string{"ERR unknown command", "ERR wrong number of arguments", "NOPROTO"}
	return slices.ContainsFunc(begins, func(begin string) bool { return strings.HasPrefix(text, begin) })
}

// failed returns err as an agent may see it. The cause never contains the
// password: a server may repeat the commands that it does not know.
func (r *Redis) failed(err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*tools.Error](err); ok {
		return e
	}
	hint := "try again; the operator's log has the cause"
	switch {
	case redis.IsOOMError(err):
		hint = "the store is full: delete keys without if_version, or ask the operator to give it more memory"
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		hint = "another program keeps something else under this key: use another key"
	case redis.IsLoadingError(err):
		hint = "the store is starting: try again"
	case redis.IsReadOnlyError(err), redis.IsClusterDownError(err), redis.IsMasterDownError(err):
		hint = "the store takes no changes: the operator must check the server"
	case redis.IsAuthError(err), redis.IsPermissionError(err):
		hint = "the store refuses the user: the operator must check its name, password and rights"
	}
	text := err.Error()
	if tooOld(text) {
		hint = "the operator must check the server: scopefs needs Redis 6.2 or newer, or Valkey"
	}
	if p := r.password.Load(); p != nil && *p != "" {
		text = strings.ReplaceAll(text, *p, "[redacted]")
	}
	return door.Unavailable(errors.New(tools.Clip(text, 1<<10)), hint)
}
