package stores

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/internal/driver"
	"github.com/scopefs/scopefs/internal/stores/wire"
	"github.com/scopefs/scopefs/tools"
)

// StoresUser is the number of the user of the drivers in a daemon of root. It is in the range that
// systemd.exec(5) has for dynamic users: no package and no operator gives it to anybody.
const StoresUser = 65411

// drivers is the process with the drivers, which starts when a call first needs it, and again after it
// died.
type drivers struct {
	driver.Lazy[*driver.Process]
	host     Host
	settings wire.Settings
	dials    map[string]dial
	secrets  map[string]*credential.Source

	mu    sync.Mutex
	began time.Time     // when a process last started
	pause time.Duration // before the next one
}

// dial connects to a driver's server.
type dial func(ctx context.Context, network, address string) (net.Conn, error)

// The pauses before a process that follows one that did not live long.
const (
	shortLife  = time.Second
	firstPause = 20 * time.Millisecond
	lastPause  = 250 * time.Millisecond
	beginTime  = 5 * time.Second
)

func newDrivers(host Host, state string) *drivers {
	p := &drivers{host: host, settings: wire.Settings{State: state}, dials: map[string]dial{}, secrets: map[string]*credential.Source{}}
	p.Open = p.start
	p.Gone = func(one *driver.Process) bool {
		select {
		case <-one.Lost():
			return true
		default:
			return false
		}
	}
	return p
}

// close ends the process, after it has closed its stores.
func (p *drivers) close() error {
	err := p.Close()
	if err != nil {
		err = fmt.Errorf("stores: %w", err)
	}
	return err
}

// find opens the program's file, if it is there.
func (p *drivers) find() (*driver.Binary, error) {
	b, err := driver.OpenBinary(driver.Name, p.host.Program)
	if err != nil {
		return nil, fmt.Errorf("stores: %w", err)
	}
	return b, nil
}

// start starts the program.
func (p *drivers) start() (*driver.Process, error) {
	binary, err := p.find()
	if err != nil {
		return nil, err
	}
	time.Sleep(p.next())
	if err := p.prepare(); err != nil {
		return nil, err
	}
	var user *driver.User
	if p.host.Root {
		user = &driver.User{UID: StoresUser, GID: StoresUser}
	}
	one, err := binary.Start(user, driver.Grants{Dial: p.dial, Secret: p.secret}, p.host.Stderr)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), beginTime)
	defer cancel()
	means, err := wire.Begin.Call(ctx, one.Conn, p.settings)
	if err == nil && len(means) == 0 {
		err = errors.New("it is not confined")
	}
	if err != nil {
		one.Kill()
		return nil, fmt.Errorf("stores: %s: %w", driver.Name, err)
	}
	return one, nil
}

// next returns how long to wait before a process starts.
func (p *drivers) next() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pause = min(max(2*p.pause, firstPause), lastPause)
	if time.Since(p.began) > shortLife {
		p.pause = 0
	}
	p.began = time.Now()
	return p.pause
}

// dial connects a driver to its server.
func (p *drivers) dial(ctx context.Context, s driver.Server) (net.Conn, error) {
	to := p.dials[s.Driver]
	if to == nil {
		return nil, fmt.Errorf("%.100q has no server", s.Driver)
	}
	return to(ctx, s.Network, s.Address)
}

// secret reads the credential of a driver.
func (p *drivers) secret(ctx context.Context, name string) (credential.Secret, error) {
	from := p.secrets[name]
	if from == nil {
		return credential.Secret{}, fmt.Errorf("%.100q has no credential", name)
	}
	return from.Read(ctx)
}

// exists reports whether an embedded store has a file already.
func (p *drivers) exists(name string) bool {
	_, err := os.Lstat(filepath.Join(p.settings.State, name))
	return !errors.Is(err, fs.ErrNotExist)
}

// prepare makes the files of embedded stores, and gives them to the user of the drivers.
func (p *drivers) prepare() error {
	kv, messages := p.settings.Embedded()
	if !kv && !messages {
		return nil
	}
	if err := os.MkdirAll(p.settings.State, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(p.settings.State)
	if err != nil {
		return err
	}
	defer root.Close()
	if kv {
		err = errors.Join(p.file(root, wire.KVFile), p.file(root, wire.KVJournal))
	}
	if messages {
		err = errors.Join(err, p.directory(root, wire.MessagesDir))
	}
	return err
}

// belongs reports whether a file is that of the user of the drivers.
func belongs(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Uid == StoresUser
}

func (p *drivers) file(root *os.Root, name string) error {
	f, err := root.OpenFile(name, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: it is no regular file", name)
	}
	if err == nil && p.host.Root && !belongs(info) {
		err = f.Chown(StoresUser, StoresUser)
	}
	return err
}

func (p *drivers) directory(root *os.Root, name string) error {
	if err := root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := root.Lstat(name)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s: it is no directory", name)
	case !p.host.Root || belongs(info):
		return nil
	}
	top, err := root.OpenRoot(name)
	if err != nil {
		return err
	}
	defer top.Close()
	err = fs.WalkDir(top.FS(), ".", func(below string, _ fs.DirEntry, err error) error {
		if err == nil && below != "." {
			err = top.Lchown(below, StoresUser, StoresUser)
		}
		return err
	})
	if err != nil {
		return err
	}
	return root.Lchown(name, StoresUser, StoresUser) // last: it says that the rest is done
}

// call calls a driver. It returns within the driver's bound.
func call[In, Out any](ctx context.Context, p *drivers, bound time.Duration, m driver.Method[In, Out], in In) (out Out, err error) {
	one, err := p.Get(ctx)
	if err != nil {
		return out, err
	}
	bounded, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	out, err = m.Call(bounded, one.Conn, in)
	if e, ok := errors.AsType[*tools.Error](err); ok {
		return out, e
	}
	if err == nil {
		return out, nil
	}
	e := tools.Errorf(tools.Unavailable, "the store failed")
	e.Hint = "try again; the operator's log has the cause"
	switch {
	case errors.Is(err, driver.ErrLost):
		e.Message, e.Hint = "the store's program ended", "call again; of a change, look first whether it was made"
	case bounded.Err() != nil:
		e.Message, e.Hint = "the store does not answer", "try again later; of a change, look first whether it was made"
	}
	return out, e.Because(err)
}

// ping calls a method that checks a store. The error is for the operator.
func ping(ctx context.Context, p *drivers, m driver.Method[driver.None, driver.None]) error {
	_, err := call(ctx, p, checkTime, m, driver.None{})
	return tools.Cause(err)
}
