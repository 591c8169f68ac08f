package driver

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/internal/descriptors"
	"github.com/scopefs/scopefs/internal/heart"
)

// Server is a server that a driver asks to be connected to.
type Server struct {
	Driver, Network, Address string
}

// What a driver gets from the daemon.
const (
	dialed = Method[Server, uint64]("dial")   // the number of the connection; see passer
	secret = Method[string, string]("secret") // of a driver
)

// Grants say what each driver gets from the daemon.
type Grants struct {
	// Dial connects a driver to its server, if that is the address.
	Dial func(context.Context, Server) (net.Conn, error)
	// Secret reads the credential of a driver.
	Secret func(ctx context.Context, driver string) (credential.Secret, error)
	// Methods are further methods of the daemon.
	Methods Handlers
}

// Handlers returns the daemon's methods. Connections go to the program through a socket.
func (g Grants) Handlers(socket *net.UnixConn) Handlers {
	to, p := Handlers{}, &passer{socket: socket}
	maps.Copy(to, g.Methods)
	dialed.Handle(to, func(ctx context.Context, s Server) (uint64, error) {
		conn, err := g.Dial(ctx, s)
		if err != nil {
			return 0, err
		}
		defer conn.Close()
		return p.pass(conn)
	})
	secret.Handle(to, func(ctx context.Context, name string) (string, error) {
		s, err := g.Secret(ctx, name)
		return s.Reveal(), err
	})
	return to
}

// passer passes connections to the other end of a socket, each with its number.
type passer struct {
	socket *net.UnixConn

	mu   sync.Mutex
	last uint64
}

func (p *passer) pass(conn net.Conn) (number uint64, err error) {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return 0, fmt.Errorf("a %T has no descriptor", conn)
	}
	fds, err := descriptors.Numbers(sc)
	if err != nil {
		return 0, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last++
	_ = p.socket.SetWriteDeadline(time.Now().Add(sendTime))
	return p.last, descriptors.Write(p.socket, binary.LittleEndian.AppendUint64(nil, p.last), fds...)
}

// Daemon is the daemon as drivers reach it.
type Daemon struct {
	conn   *Conn
	socket *net.UnixConn

	mu  sync.Mutex
	got map[uint64]*os.File // that nobody has taken
}

// Inherit returns what the daemon has started this program with: a connection that has its first handlers, and the caller
// serves, and what the daemon gives drivers. It answers the heartbeat, and has Go's collector work harder above heap bytes.
func Inherit(first Handlers, heap int64) (*Conn, *Daemon, error) {
	socket, err := net.FileConn(os.NewFile(connFD, "connections"))
	if err != nil {
		return nil, nil, errors.New("scopefs starts it")
	}
	debug.SetMemoryLimit(heap)
	conn := NewConn(os.NewFile(socketFD, "daemon"), first)
	go heart.NewHeart(os.NewFile(heartFD, "heart")).Serve(conn.Responsive)
	return conn, newDaemon(conn, socket.(*net.UnixConn)), nil
}

func newDaemon(conn *Conn, socket *net.UnixConn) *Daemon {
	return &Daemon{conn: conn, socket: socket, got: map[uint64]*os.File{}}
}

// Reach returns what a driver has of the world.
func (d *Daemon) Reach(driver string) Reach {
	return Reach{
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			number, err := dialed.Call(ctx, d.conn, Server{driver, network, address})
			if err != nil {
				return nil, err
			}
			return d.take(number)
		},
		Secret: func(ctx context.Context) (credential.Secret, error) {
			text, err := secret.Call(ctx, d.conn, driver)
			return credential.Known(text), err
		},
	}
}

// take returns a connection that the daemon has passed.
func (d *Daemon) take(number uint64) (net.Conn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.got[number] == nil {
		n, f, err := d.receive()
		if err != nil {
			return nil, err
		}
		d.got[n] = f
		for old, f := range d.got {
			if old+maxCalls < n { // of a call that was cancelled
				f.Close()
				delete(d.got, old)
			}
		}
	}
	f := d.got[number]
	delete(d.got, number)
	defer f.Close()
	return net.FileConn(f)
}

func (d *Daemon) receive() (number uint64, f *os.File, err error) {
	word := make([]byte, 8)
	_ = d.socket.SetReadDeadline(time.Now().Add(sendTime)) // it was passed before its number came
	n, fds, err := descriptors.Read(d.socket, word, 1)
	if err != nil {
		return 0, nil, err
	}
	files := descriptors.Files(fds, "server")
	if len(files) != 1 || n != len(word) {
		descriptors.Close(files)
		return 0, nil, errors.New("the daemon passed no connection")
	}
	return binary.LittleEndian.Uint64(word), files[0], nil
}
