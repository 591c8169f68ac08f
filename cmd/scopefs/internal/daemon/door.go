package daemon

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/scopefs/scopefs/cmd/scopefs/internal/control"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/file/profile"
)

// A door is an agent's own socket, RUN/mcp/<id>.sock: who connects there speaks
// MCP as this agent, one JSON-RPC message a line. Before the first message may
// come a line "profile NAME".
type door struct {
	listener net.Listener
	conns    sync.WaitGroup
	cancel   context.CancelFunc
}

// maxClients bounds the clients of one agent over all its sockets, those of its
// tasks included: each client has a sandbox.
const maxClients = 64

// slotsOf returns the channel that holds one value for each client of an agent.
func (d *Daemon) slotsOf(id scope.ID) chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.slots[id] == nil {
		d.slots[id] = make(chan struct{}, maxClients)
	}
	return d.slots[id]
}

// openDoor makes an agent's socket, for its user and ourselves.
func (d *Daemon) openDoor(id scope.ID, owner user) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closing {
		return errClosing
	}
	if d.doors[id] != nil {
		return nil
	}
	at, err := d.newDoor(d.paths.Door(string(id)), owner)
	if err != nil {
		return fmt.Errorf("socket of %q: %w", id, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	at.cancel = cancel
	d.doors[id] = at
	at.conns.Go(func() { d.receive(ctx, at, id, owner, nil) })
	return nil
}

// newDoor makes a socket for an agent's user and ourselves.
func (d *Daemon) newDoor(name string, owner user) (*door, error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o711); err != nil {
		return nil, err
	}
	l, err := control.Listen(name)
	if err != nil {
		return nil, err
	}
	if d.root {
		if err := os.Lchown(name, int(owner.uid), int(owner.gid)); err != nil {
			l.Close()
			return nil, err
		}
	}
	return &door{listener: l}, nil
}

// closeDoor ends an agent's clients and waits until they are gone.
func (d *Daemon) closeDoor(id scope.ID) {
	d.mu.Lock()
	at, web := d.doors[id], d.web
	delete(d.doors, id)
	d.mu.Unlock()
	if web != nil {
		web.drop(id)
	}
	if at == nil {
		return
	}
	at.cancel()
	at.listener.Close()
	at.conns.Wait()
	os.Remove(d.paths.Door(string(id)))
}

// closeDoors is closeDoor for all, at once.
func (d *Daemon) closeDoors() {
	d.mu.Lock()
	ids := slices.Collect(maps.Keys(d.doors))
	d.mu.Unlock()
	var wg sync.WaitGroup
	for _, id := range ids {
		wg.Go(func() { d.closeDoor(id) })
	}
	wg.Wait()
}

// isOpen reports whether an agent's tools may be used.
func (d *Daemon) isOpen(id scope.ID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.doors[id] != nil
}

const (
	acceptPause = time.Second           // without descriptors
	refusePause = 20 * time.Millisecond // before a client beyond maxClients is refused
)

// receive serves those who connect, for whose tasks by says.
func (d *Daemon) receive(ctx context.Context, at *door, id scope.ID, owner user, by *client) {
	slots := d.slotsOf(id)
	for {
		conn, err := at.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no descriptors are left, and there will be again (accept(2))
			d.warnings.warn(id, "clients wait", "err", err)
			select {
			case <-ctx.Done():
				return
			case <-time.After(acceptPause):
			}
			continue
		}
		if uid, ok := control.PeerUID(conn); !ok || uid != 0 && uid != uint32(os.Geteuid()) && uid != owner.uid {
			conn.Close()
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			// A refusal is slow, so that connecting in a loop costs the client more than us.
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				conn.Close()
				return
			case <-time.After(refusePause):
				d.warnings.warn(id, "too many clients", "limit", maxClients)
				conn.SetWriteDeadline(time.Now().Add(refusePause))
				fmt.Fprintf(conn, "scopefs: the agent has %d clients already: end one of them\n", maxClients)
				conn.Close()
				continue
			}
		}
		at.conns.Go(func() {
			defer func() { <-slots }()
			if err := d.attendMCP(ctx, conn, id, by); err != nil && ctx.Err() == nil {
				d.warnings.warn(id, "client", "err", err)
			}
		})
	}
}

// attendMCP serves one client until it goes.
func (d *Daemon) attendMCP(ctx context.Context, conn net.Conn, id scope.ID, by *client) error {
	defer conn.Close()
	leave, err := d.enter()
	if err != nil {
		return err
	}
	defer leave()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	r := bufio.NewReaderSize(conn, 64<<10)
	profile, err := readProfile(r)
	if errors.Is(err, io.EOF) { // a pulse, which is no client: see knock
		return nil
	}
	if err != nil {
		return err
	}
	c, err := d.newClient(id, profile, by)
	if err != nil {
		fmt.Fprintf(conn, "scopefs: %s\n", strings.ReplaceAll(toldOf(err).Error(), "\n", "; "))
		return err
	}
	defer c.close()
	defer context.AfterFunc(ctx, c.stop)()
	return c.face.Serve(ctx, peeked{conn, r})
}

// peeked is a connection of which a part was read already.
type peeked struct {
	net.Conn
	r *bufio.Reader
}

func (p peeked) Read(b []byte) (int, error) { return p.r.Read(b) }

var errNotLoaded = errors.New("the definition does not load; the operator's log says why")

// toldOf is what an agent is told of why it has no tools. The rest names files of
// the host, other agents and the operator's variables.
func toldOf(err error) error {
	switch {
	case errors.Is(err, control.ErrUnknown):
		return control.ErrUnknown
	case errors.Is(err, profile.ErrUnknown), errors.Is(err, errClosing):
		return err
	}
	return errNotLoaded
}

// readProfile reads the line before the first message, if there is one.
func readProfile(r *bufio.Reader) (string, error) {
	first, err := r.Peek(1)
	if err != nil || first[0] != 'p' {
		return "", err
	}
	line, err := r.ReadSlice('\n') // bounded by the buffer
	if err != nil {
		return "", err
	}
	name, ok := strings.CutPrefix(strings.TrimSpace(string(line)), "profile ")
	if !ok {
		return "", fmt.Errorf("%.40q is neither a message nor a profile", line)
	}
	return name, nil
}
