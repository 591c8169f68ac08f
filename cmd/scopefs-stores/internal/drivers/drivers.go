// Package drivers is the process with the drivers of stores. It confines itself before it opens one.
package drivers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/cmd/scopefs-stores/internal/kv"
	"github.com/scopefs/scopefs/cmd/scopefs-stores/internal/mail"
	"github.com/scopefs/scopefs/cmd/scopefs-stores/internal/messages"
	"github.com/scopefs/scopefs/cmd/scopefs-stores/internal/objects"
	"github.com/scopefs/scopefs/cmd/scopefs-stores/internal/postgres"
	"github.com/scopefs/scopefs/cmd/scopefs-stores/internal/sqliteconn"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/confine"
	"github.com/scopefs/scopefs/internal/driver"
	"github.com/scopefs/scopefs/internal/stores/wire"
	kvdoor "github.com/scopefs/scopefs/tools/kv"
	messagesdoor "github.com/scopefs/scopefs/tools/messages"
	"github.com/scopefs/scopefs/tools/notify"
	objectsdoor "github.com/scopefs/scopefs/tools/objects"
	"github.com/scopefs/scopefs/tools/sql/engine"
)

// The bounds of the process.
const (
	memory = 4 << 30   // bytes of data
	heap   = 512 << 20 // bytes of Go's memory, after which the collector works harder
	files  = 4096
)

// Serve serves the daemon until it closes the connection, and closes the stores.
func Serve() error {
	first, d := driver.Handlers{}, &drivers{handlers: driver.Handlers{}}
	wire.Begin.Handle(first, d.begin)
	var err error
	if d.conn, d.daemon, err = driver.Inherit(first, heap); err != nil {
		return err
	}
	err = d.conn.Serve()
	for _, one := range d.open {
		err = errors.Join(err, one.Close())
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// drivers are those of one process. begin sets them; there are no other calls before it returns.
type drivers struct {
	conn     *driver.Conn
	handlers driver.Handlers
	daemon   *driver.Daemon
	open     []io.Closer
}

// begin confines the process, and makes the drivers.
func (d *drivers) begin(ctx context.Context, s wire.Settings) ([]string, error) {
	if _, err := x509.SystemCertPool(); err != nil { // which it keeps
		return nil, fmt.Errorf("certificates: %w", err)
	}
	if err := sqliteconn.Seed(ctx); err != nil {
		return nil, err
	}
	needs, err := needsOf(s)
	if err != nil {
		return nil, err
	}
	means, err := confine.Confine(needs)
	if err != nil {
		return nil, fmt.Errorf("confine: %w", err)
	}
	d.kv(s.KV)
	d.sql(s.SQL)
	err = errors.Join(d.messages(s.Messages), d.objects(s.Objects))
	wire.SendMail.Handle(d.handlers, func(ctx context.Context, l notify.Letter) (*notify.Failure, error) {
		return mail.Send(ctx, l, d.daemon.Reach(wire.Mail+l.Channel).Dial), nil
	})
	d.conn.Replace(d.handlers)
	return means, err
}

// The places of files in the root of the process.
const (
	kvFile      = "/" + wire.KVFile
	kvJournal   = "/" + wire.KVJournal
	messagesDir = "/" + wire.MessagesDir
)

// needsOf returns what the drivers need beside what the daemon gives them.
func needsOf(s wire.Settings) (confine.Needs, error) {
	n := confine.Needs{Trees: map[string]int{}, Memory: memory, Files: files, Calls: calls}
	kvFiles, messagesFiles := s.Embedded()
	var names []string
	if kvFiles {
		names = append(names, kvFile, kvJournal)
	}
	if messagesFiles {
		names = append(names, messagesDir)
		n.Dirs = []string{messagesDir}
	}
	for _, name := range names {
		flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_SYMLINK_NOFOLLOW)
		fd, err := unix.OpenTree(unix.AT_FDCWD, s.State+name, flags)
		if err != nil {
			return n, fmt.Errorf("open %s%s: %w", s.State, name, err)
		}
		n.Trees[name] = fd
	}
	return n, nil
}

// calls are the system calls of the drivers beside those of the Go runtime and of existing files: of the
// message server's directory, and of connections that the daemon made. There is none that makes a connection.
var calls = []uint32{
	unix.SYS_MKDIRAT, unix.SYS_UNLINKAT, unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_GETDENTS64, unix.SYS_FLOCK,
	unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_UTIMENSAT, unix.SYS_FALLOCATE, unix.SYS_STATFS, unix.SYS_FSTATFS,
	unix.SYS_RECVMSG, unix.SYS_SENDMSG, unix.SYS_RECVFROM, unix.SYS_SENDTO, unix.SYS_GETSOCKOPT, unix.SYS_SETSOCKOPT,
	unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME, unix.SYS_SHUTDOWN, unix.SYS_SYSINFO, unix.SYS_UNAME,
	unix.SYS_GETRUSAGE, unix.SYS_PRLIMIT64, unix.SYS_GETPPID, unix.SYS_GETGID, unix.SYS_GETEGID,
}

// none is the result of a method without one.
func none(err error) (driver.None, error) { return driver.None{}, err }

func (d *drivers) kv(config *config.KVStore) {
	if config == nil {
		return
	}
	limits := kvdoor.Limits{Keys: config.Keys, Bytes: config.Size}
	one := &driver.Lazy[kv.Store]{Open: func() (kv.Store, error) { return kv.OpenSQLite(kvFile, limits) }}
	if config.Redis != "" {
		one.Open = func() (kv.Store, error) { return kv.OpenRedis(d.redis(config), limits) }
	}
	d.open = append(d.open, one)
	serve(d, one, wire.KVGet, kv.Store.Get)
	serve(d, one, wire.KVPlain, func(s kv.Store, ctx context.Context, names []string) (out wire.PlainEntry, err error) {
		out.Entry, out.Found, err = s.Plain(ctx, names...)
		return out, err
	})
	serve(d, one, wire.KVSet, func(s kv.Store, ctx context.Context, c wire.KVChange) (kvdoor.Entry, error) {
		return s.Set(ctx, c.Change, c.Value, c.TTL)
	})
	serve(d, one, wire.KVDelete, kv.Store.Delete)
	serve(d, one, wire.KVList, func(s kv.Store, ctx context.Context, l wire.KVListing) (out wire.KVPage, err error) {
		out.Entries, out.Next, err = s.List(ctx, l.Prefix, l.After, l.Limit)
		return out, err
	})
	serve(d, one, wire.KVSize, kv.Store.Size)
	serve(d, one, wire.KVForget, kv.Store.Forget)
	wire.KVPing.Handle(d.handlers, func(ctx context.Context, _ driver.None) (driver.None, error) {
		if _, ok := one.Opened(); !ok && config.Redis == "" {
			return none(kv.CheckFile(ctx, kvFile))
		}
		s, err := one.Get(ctx)
		if err == nil {
			err = s.Ping(ctx)
		}
		return none(err)
	})
}

// serve runs a method by a store, which is open then.
func serve[In, Out any](
	d *drivers, one *driver.Lazy[kv.Store], m driver.Method[In, Out], f func(kv.Store, context.Context, In) (Out, error),
) {
	m.Handle(d.handlers, func(ctx context.Context, in In) (out Out, err error) {
		s, err := one.Get(ctx)
		if err != nil {
			return out, err
		}
		return f(s, ctx, in)
	})
}

func (d *drivers) redis(config *config.KVStore) kv.RedisOptions {
	o := kv.RedisOptions{Address: config.Redis, Username: config.User, Reach: d.daemon.Reach(wire.KV)}
	if config.Password == nil {
		o.Secret = nil
	}
	if host, _, err := net.SplitHostPort(config.Redis); err == nil && config.TLS {
		o.TLS = &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
	}
	return o
}

func (d *drivers) messages(config *config.MessagesStore) error {
	if config == nil {
		return nil
	}
	limits := messagesdoor.Limits{Messages: config.Messages, Bytes: config.Size, Age: config.Age}
	one := messages.OpenEmbedded(messagesDir, limits)
	if config.URL != "" {
		u, err := url.Parse(config.URL)
		if err != nil {
			return errors.New("messages: url: is no address")
		}
		server := messagesdoor.Server{URL: u, User: config.User, Password: config.Password}
		if one, err = messages.OpenServer(messages.Server{Server: server, Reach: d.daemon.Reach(wire.Messages)}, limits); err != nil {
			return fmt.Errorf("messages: %w", err)
		}
	}
	d.open = append(d.open, one)
	wire.Publish.Handle(d.handlers, one.Publish)
	wire.Read.Handle(d.handlers, one.Read)
	wire.MessagesSize.Handle(d.handlers, one.Size)
	wire.Forget.Handle(d.handlers, func(ctx context.Context, f messagesdoor.Forgotten) (driver.None, error) {
		return none(one.Forget(ctx, f))
	})
	wire.MessagesPing.Handle(d.handlers, func(ctx context.Context, _ driver.None) (driver.None, error) { return none(one.Ping(ctx)) })
	return nil
}

func (d *drivers) objects(config *config.ObjectStore) error {
	if config == nil {
		return nil
	}
	one, err := objects.Open(objects.Options{Reach: d.daemon.Reach(wire.Objects), Options: objectsdoor.Options(*config)})
	if err != nil {
		return fmt.Errorf("objects: %w", err)
	}
	d.open = append(d.open, one)
	wire.ObjectGet.Handle(d.handlers, one.Get)
	wire.ObjectPut.Handle(d.handlers, one.Put)
	wire.ObjectList.Handle(d.handlers, one.List)
	wire.ObjectDelete.Handle(d.handlers, func(ctx context.Context, in objectsdoor.Delete) (driver.None, error) {
		return none(one.Delete(ctx, in))
	})
	wire.ObjectPing.Handle(d.handlers, func(ctx context.Context, _ driver.None) (driver.None, error) { return none(one.Ping(ctx)) })
	return nil
}

func (d *drivers) sql(config *config.SQLStore) {
	if config == nil {
		return
	}
	o := postgres.Options{SQLStore: config, Reach: d.daemon.Reach(wire.SQL)}
	if name := config.Postgres.TLS; name != "" {
		o.TLS = &tls.Config{ServerName: name, MinVersion: tls.VersionTLS12}
	}
	one := postgres.Open(o)
	d.open = append(d.open, one)
	wire.SQLDo.Handle(d.handlers, func(ctx context.Context, in wire.Statement) (engine.Reply, error) {
		return one.Do(ctx, in.Role, &in.Request)
	})
	wire.SQLPing.Handle(d.handlers, func(ctx context.Context, _ driver.None) (driver.None, error) { return none(one.Ping(ctx)) })
}
