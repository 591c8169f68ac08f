package session

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/internal/api"
	control "github.com/scopefs/scopefs/internal/client"
	scoped "github.com/scopefs/scopefs/scope/context"
	"github.com/scopefs/scopefs/tools/file/profile"
)

// socket is a unix socket whose clients speak MCP as one agent, one JSON-RPC message a
// line: the agent's own, RUN/mcp/<id>.sock, or that of a task. Lines may come before the first
// message: "profile NAME", "dir DIR", "once", "full-schemas", "returns", and "context N", which N bytes follow: see api.Hello.
// A client of the agent's own may speak streamable HTTP: see beginsHTTP.
type socket struct {
	name     string
	listener net.Listener
	clients  sync.WaitGroup
	cancel   context.CancelFunc
}

// maxClients bounds the clients of one agent over all its sockets, those of its
// tasks included: each client has a sandbox.
const maxClients = 64

// connectTime is what a client takes of a processor until its first message. Over HTTP each request counts, not its connection.
const connectTime = 3 * time.Millisecond

// OpenSocket makes the agent's own socket, for the agent's user and ourselves.
func (a *Agent) OpenSocket(owner account.User) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closing {
		return ErrClosing
	}
	if a.socket != nil {
		return nil
	}
	s, err := a.listen(a.Paths.ToolSocket(string(a.id)), owner, work{})
	if err != nil {
		return fmt.Errorf("socket of %q: %w", a.id, err)
	}
	a.socket = s
	return a.Welcome(owner.UID)
}

// listen makes a socket for the agent's user and ourselves, and serves its clients,
// which do a task.
func (a *Agent) listen(name string, owner account.User, task work) (*socket, error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o711); err != nil {
		return nil, err
	}
	l, err := api.Listen(name)
	if err != nil {
		return nil, err
	}
	if a.Root {
		if err := os.Lchown(name, int(owner.UID), int(owner.GID)); err != nil {
			l.Close()
			return nil, err
		}
	}
	s := a.serve(l, owner, task)
	s.name = name
	return s, nil
}

// serve serves the clients of a listening socket, which do a task.
func (a *Agent) serve(l net.Listener, owner account.User, task work) *socket {
	ctx, cancel := context.WithCancel(context.Background())
	s := &socket{listener: l, cancel: cancel}
	s.clients.Go(func() { a.receive(ctx, s, owner, task) })
	return s
}

// close ends the clients, waits until they are gone, and removes the socket.
func (s *socket) close() {
	s.cancel()
	s.listener.Close()
	s.clients.Wait()
	os.Remove(s.name)
}

// CloseSocket ends the agent's clients and waits until they are gone. Calls in flight
// end too: what they did next would mount the view again.
func (a *Agent) CloseSocket() {
	a.mu.Lock()
	s := a.socket
	a.socket = nil
	a.mu.Unlock()
	a.CloseWeb()
	if s != nil {
		s.close()
	}
}

// drainTime bounds Drain. package mcp ends a connection within a second of its last request.
const drainTime = 2 * time.Second

// Drain ends the reading of requests, and waits up to drainTime until clients have the answers to those in flight and are gone.
func (a *Agent) Drain() {
	a.mu.Lock()
	var all []*client
	for c := range a.clients {
		if c.drain != nil {
			c.drain()
			all = append(all, c)
		}
	}
	a.mu.Unlock()
	late := time.After(drainTime)
	for _, c := range all {
		select {
		case <-c.gone:
		case <-late:
			return
		}
	}
}

const (
	acceptPause = time.Second           // without descriptors
	refusePause = 20 * time.Millisecond // before a client beyond maxClients is refused, the first of a crowd
	crowdPause  = refusePause / 40      // before the next of the crowd: the kernel queues 4,096 of them
)

// receive accepts clients and serves each in a goroutine until the socket is closed.
func (a *Agent) receive(ctx context.Context, s *socket, owner account.User, task work) {
	var refused time.Time // the last one
	for {
		conn, err := s.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no descriptors are left, and there will be again (accept(2))
			a.Warnings.Warn(a.id, "clients wait", "err", err)
			select {
			case <-ctx.Done():
				return
			case <-time.After(acceptPause):
			}
			continue
		}
		if uid, ok := api.PeerUID(conn); !ok || uid != 0 && uid != uint32(os.Geteuid()) && uid != owner.UID {
			conn.Close()
			continue
		}
		free, ok := a.slots.Try()
		if !ok {
			// A refusal is slow, so that connecting in a loop costs the client more than us, and
			// a client that connects while another ends is served.
			pause := refusePause
			if time.Since(refused) < refusePause {
				pause = crowdPause
			}
			wait, cancel := context.WithTimeout(ctx, pause)
			free, err = a.slots.Take(wait)
			cancel()
			switch {
			case ctx.Err() != nil:
				if err == nil {
					free()
				}
				conn.Close()
				return
			case err != nil:
				refused = time.Now()
				a.Warnings.Warn(a.id, "too many clients", "limit", maxClients)
				// The first write to a socket does not block, and a deadline would be about our own lag.
				fmt.Fprintf(conn, "scopefs: the agent has %d clients already: end one of them\n", maxClients)
				conn.Close()
				continue
			}
		}
		s.clients.Go(func() {
			defer free()
			if err := a.serveClient(ctx, conn, task); err != nil && ctx.Err() == nil && !errors.Is(err, ErrClosing) {
				a.Warnings.Warn(a.id, "client", "err", err)
			}
		})
	}
}

// serveClient serves one client until it disconnects.
func (a *Agent) serveClient(ctx context.Context, conn net.Conn, task work) error {
	defer conn.Close()
	leave, err := a.Enter()
	if err != nil {
		return err
	}
	var left *Sandbox // its end is recorded, or the next daemon has it
	defer func() {
		if left == nil {
			leave()
			return
		}
		go func() {
			defer leave()
			<-left.Done()
			left.End()
		}()
	}()
	ctx, hangUp := context.WithCancelCause(ctx)
	defer hangUp(nil)
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	r := bufio.NewReaderSize(conn, 64<<10)
	if task.by == nil && a.ServeHTTP != nil && beginsHTTP(r) {
		a.ServeHTTP(a.id, buffered{conn, r})
		return nil
	}
	hello, err := a.readHello(r)
	defer hello.free()
	if errors.Is(err, io.EOF) { // a pulse, which is no client: see knock
		return nil
	}
	if shown := shownError(err); err != nil && shown != errNotLoaded {
		fmt.Fprintf(conn, "scopefs: %s\n", shown)
	}
	if err != nil {
		return err
	}
	if err := a.share.Wait(ctx, connectTime); err != nil {
		return err
	}
	if hello.context != nil {
		task.context = hello.context
	}
	task.full = hello.FullSchemas
	resume := api.Resume{Grace: a.Grace}
	uid, known := api.PeerUID(conn)
	if known && resume.Grace > 0 && hello.Returns && task.by == nil {
		resume.Token = rand.Text()
		if hello.Resume != nil {
			if task.earlier = a.Returned(ctx, a.id, *hello.Resume, conn); task.earlier != nil {
				resume.Token = hello.Resume.Token
			}
		}
	}
	c, err := a.newReturned(hello.Profile, hello.Dir, task)
	if err == nil {
		c.once, c.token, c.user, c.resumes = hello.Once, resume.Token, uid, hello.Continues && resume.Token != ""
		c.hangUp = hangUp
		c.drain = func() { _ = conn.SetReadDeadline(time.Now()) }
		err = a.admit(c)
	}
	if err != nil {
		fmt.Fprintf(conn, "scopefs: %s\n", strings.ReplaceAll(shownError(err).Error(), "\n", "; "))
		if task.earlier != nil && !task.earlier.leaves() {
			task.earlier.End()
		}
		return err
	}
	defer func() { left = c.close() }()
	if hello.Returns && task.by == nil {
		resume.Session, resume.Token = c.name, c.token
		if _, err := conn.Write(control.SandboxLine(resume, c.earlier != nil)); err != nil {
			return err
		}
	}
	defer context.AfterFunc(ctx, c.stop)()
	err = c.face.Serve(ctx, peeked{buffered{conn, r}})
	if context.Cause(ctx) == errKilled {
		return nil
	}
	return err
}

// beginsHTTP reports whether a client sends a request line of HTTP, which begins with the capitals of a method: RFC 9112,
// section 3. A line before the first message begins with a small letter, and a message with a brace.
func beginsHTTP(r *bufio.Reader) bool {
	first, err := r.Peek(1)
	return err == nil && first[0] >= 'A' && first[0] <= 'Z'
}

// buffered is a connection whose first bytes are in a buffer.
type buffered struct {
	net.Conn
	r *bufio.Reader
}

func (b buffered) Read(p []byte) (int, error) { return b.r.Read(p) }

// peeked is the connection of a client that drain may end.
type peeked struct{ buffered }

func (p peeked) Read(b []byte) (int, error) {
	n, err := p.buffered.Read(b)
	if errors.Is(err, os.ErrDeadlineExceeded) { // only drain sets a read deadline
		err = io.EOF
	}
	return n, err
}

var errNotLoaded = errors.New("the definition does not load; the operator's log says why")

// shownError returns the error that an agent without tools may see. Other errors name
// files of the host, other agents and the operator's variables.
func shownError(err error) error {
	switch {
	case errors.Is(err, api.ErrUnknown):
		return api.ErrUnknown
	case errors.Is(err, profile.ErrUnknown), errors.Is(err, ErrClosing):
		return err
	}
	if bad, ok := errors.AsType[*scoped.Error](err); ok {
		return fmt.Errorf("context: %w", bad)
	}
	if errors.Is(err, errContexts) {
		return err
	}
	return errNotLoaded
}

// hello is what a client says before its first message.
type hello struct {
	api.Hello
	context *scoped.Environment // nil: that of the task
	free    func()              // ends the hold on memory
}

// readHello reads the lines before the first message.
func (a *Agent) readHello(r *bufio.Reader) (h hello, err error) {
	h.free = func() {}
	h.Hello, err = control.ReadHello(r, func(size string) (err error) {
		if h.context != nil {
			return errors.New("two contexts")
		}
		h.context, h.free, err = a.readContext(r, size)
		return err
	})
	return h, err
}

// readContext reads an environment of so many bytes.
func (a *Agent) readContext(r io.Reader, size string) (env *scoped.Environment, free func(), err error) {
	free = func() {}
	n, err := strconv.Atoi(size)
	if err != nil || n < 0 || n > scoped.MaxBytes {
		return nil, free, &scoped.Error{Code: scoped.TooLarge, Message: fmt.Sprintf("%.20q is no size from 0 to %d bytes", size, scoped.MaxBytes)}
	}
	release, ok := a.holdContext(n)
	if !ok {
		return nil, free, errContexts
	}
	var text bytes.Buffer // grows with what comes
	if _, err := io.CopyN(&text, r, int64(n)); err != nil {
		return nil, release, err
	}
	env, bad := scoped.Parse(text.Bytes())
	if bad != nil {
		return nil, release, bad
	}
	return env, release, nil
}
