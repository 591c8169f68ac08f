package session

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/loopback"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/hosts"
	"github.com/scopefs/scopefs/tools/egress"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// borders has what the sandboxes of a daemon share of this host's loopback.
type borders struct {
	mu        sync.Mutex
	published map[uint16]scope.ID // ports of the host, with those that are about to be
	open      map[*Sandbox]bool   // sandboxes that have the host's network
}

// claim reserves a port of the host for an agent.
func (b *borders) claim(port uint16, id scope.ID) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if of, taken := b.published[port]; taken {
		return fmt.Errorf("it is published for a sandbox of %s already", of)
	}
	if b.published == nil {
		b.published = map[uint16]scope.ID{}
	}
	b.published[port] = id
	return nil
}

func (b *borders) drop(port uint16) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.published, port)
}

// enter notes a sandbox with the host's network; leave forgets it.
func (b *borders) enter(box *Sandbox) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open == nil {
		b.open = map[*Sandbox]bool{}
	}
	b.open[box] = true
}

func (b *borders) leave(box *Sandbox) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.open, box)
}

// other returns an agent beside one whose sandbox has the host's network, as a user; "" if there is none.
func (b *borders) other(id scope.ID, uid uint32) scope.ID {
	b.mu.Lock()
	boxes := slices.Collect(maps.Keys(b.open))
	b.mu.Unlock()
	for _, box := range boxes {
		if of := box.agent; of.id != id {
			if user, _, err := of.User(); err != nil || user == uid {
				return of.id
			}
		}
	}
	return ""
}

// mayReach returns why an agent may not connect to a port of the host: it is one of this daemon's own sockets, and not published by a
// sandbox of that agent.
func (s *Shared) mayReach(id scope.ID, port uint16) error {
	s.borders.mu.Lock()
	of, published := s.borders.published[port]
	s.borders.mu.Unlock()
	switch {
	case published && of == id:
		return nil
	case published:
		return fmt.Errorf("port %d of this host is published for another agent", port)
	case loopback.Own(port):
		return fmt.Errorf("port %d of this host is the daemon's own", port)
	}
	return nil
}

// publication is a port of the host that the network of a sandbox serves.
type publication struct {
	hosts.Publication
	*loopback.Listener
}

// publish listens at the ports of the host that lead into a sandbox that starts. It fails if one of those of the run is not free. Those
// of the definition another sandbox of the agent may have: a line says so.
func (n *network) publish(p Purpose) error {
	if n.kind == hosts.HostNetwork && len(p.Publish)+len(p.HostPorts) > 0 {
		return errors.New("network: host: the sandbox has the host's ports already: leave out --publish and --host-port")
	}
	if n.kind == hosts.HostNetwork || !p.own() {
		return nil
	}
	asked := func(o hosts.Publication) bool {
		return slices.ContainsFunc(p.Publish, func(p hosts.Publication) bool { return p.At == o.At })
	}
	for _, at := range slices.Concat(p.Publish, slices.DeleteFunc(n.hosts().Opens().Published, asked)) {
		err := n.listen(at)
		if err == nil {
			continue
		}
		err = fmt.Errorf("port %d of this host: %w", at.At, loopback.Refused(err, "publish another port"))
		if asked(at) {
			n.withdraw()
			return fmt.Errorf("--publish %s: %w", at, err)
		}
		n.note(p, "network.publish", err)
	}
	return nil
}

func (n *network) listen(at hosts.Publication) error {
	if err := n.agent.borders.claim(at.At, n.agent.id); err != nil { // before it listens: see mayReach
		return err
	}
	l, _, err := loopback.Listen(net.JoinHostPort("127.0.0.1", strconv.Itoa(int(at.At))))
	if err != nil {
		n.agent.borders.drop(at.At)
		return err
	}
	n.published = append(n.published, publication{at, l})
	return nil
}

// note tells the operator of the run, and the daemon's log, of a port that is not there.
func (n *network) note(p Purpose, what string, err error) {
	n.agent.Warnings.Warn(n.agent.id, what+": left out", "err", err)
	if p.Refused != nil {
		p.Refused("", what+": "+err.Error(), "")
	}
}

// withdraw closes the ports of the host. It may be called again.
func (n *network) withdraw() {
	n.portLock.Lock()
	all, ports := n.published, n.ports
	n.published, n.ports = nil, nil
	n.portLock.Unlock()
	for _, p := range all {
		p.Close() // the proxy may have closed it
		n.agent.borders.drop(p.At)
	}
	if ports != nil {
		ports.Close()
	}
}

// Close ends the network.
func (n *network) Close() {
	n.Door.Close()
	n.withdraw()
}

// listenTime bounds the start of the process of ports, and its answer.
const listenTime = 15 * time.Second

// openPorts returns the ports of a sandbox that runs.
func (n *network) openPorts(box *Sandbox, p Purpose) (all []egress.Port) {
	inside := p.HostPorts
	if p.own() {
		inside = slices.Concat(inside, n.hosts().Opens().Host)
	}
	slices.Sort(inside)
	inside = slices.Compact(inside)
	if len(n.published)+len(inside) == 0 {
		return nil
	}
	made := box.Ports()
	n.portLock.Lock()
	n.ports, n.inside = made, inside
	n.portLock.Unlock()
	for _, at := range n.published {
		all = append(all, egress.Port{
			Way: egress.Published, At: at.At, Number: at.Inside, Listener: at.TCPListener, Check: n.admit,
			Connect: func(ctx context.Context) (net.Conn, error) {
				c, err := made.Connect(ctx, at.Inside)
				if errors.Is(err, unix.ECONNREFUSED) {
					err = fmt.Errorf("nothing listens at port %d of the sandbox", at.Inside)
				}
				return c, err
			},
		})
	}
	ctx, cancel := context.WithTimeout(context.Background(), listenTime)
	defer cancel()
	for _, port := range inside {
		l, err := made.Listen(ctx, port)
		if err != nil {
			n.note(p, "network.host.ports", err)
			continue
		}
		all = append(all, egress.Port{
			Way: egress.HostPort, Number: port, Listener: l,
			Connect: func(ctx context.Context) (net.Conn, error) {
				n.led.Add(1)
				return n.dialHost(ctx, port)
			},
		})
	}
	return all
}

// admit returns an error for a connection to a published port that is not of the agent's user or the daemon's, or that may be of another
// agent's sandbox.
func (n *network) admit(c net.Conn) error {
	uid, err := loopback.Peer(c)
	if err != nil {
		return errors.New("the kernel does not say whose it is")
	}
	if uid != uint32(os.Geteuid()) {
		if !n.agent.Root { // a user namespace has one number for all other users
			return errors.New("it is of another user of this host")
		}
		if user, _, err := n.agent.User(); err != nil || uid != user {
			return fmt.Errorf("it is of user %d, who is not the agent's", uid)
		}
	}
	if other := n.agent.borders.other(n.agent.id, uid); other != "" {
		return fmt.Errorf("a sandbox of %s has the network of the host and may be who connects: end that one first", other)
	}
	return nil
}

// dialHost connects to a port of the host's loopback.
func (n *network) dialHost(ctx context.Context, port uint16) (c net.Conn, err error) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		ip := netip.MustParseAddr(host)
		dialer := egress.Dialer{Pinned: []netip.Prefix{netip.PrefixFrom(ip, ip.BitLen())}, Local: n.reach}
		c, err = dialer.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
		if !errors.Is(err, unix.ECONNREFUSED) {
			break
		}
	}
	if errors.Is(err, unix.ECONNREFUSED) {
		err = fmt.Errorf("nothing listens at port %d of this host: start the service: %w", port, err)
	}
	return c, err
}

func (n *network) reach(port uint16) error { return n.agent.mayReach(n.agent.id, port) }

// decidePort decides about a connection to a port: by the run's flags, and by the current rules.
func (n *network) decidePort(p Purpose) func(egress.Way, uint16, uint16) scope.Decision {
	return func(way egress.Way, at, port uint16) scope.Decision {
		asked := hosts.Publication{At: at, Inside: port}
		switch {
		case way == egress.Published && slices.Contains(p.Publish, asked):
			return scope.Decision{Allow: true, Kind: scope.KindPort, Rule: "--publish " + asked.String()}
		case way == egress.HostPort && slices.Contains(p.HostPorts, port):
			return scope.Decision{Allow: true, Kind: scope.KindPort, Rule: fmt.Sprintf("--host-port %d", port)}
		case way == egress.Published:
			return n.hosts().Publish(at, port)
		}
		return n.hosts().HostPort(port)
	}
}

// portNotes is what a run tells its operator of ports at its end.
type portNotes struct {
	box     *Sandbox
	network *network
	stop    context.CancelFunc
	done    chan struct{}

	mu   sync.Mutex
	seen []uint16 // that a process of the sandbox has listened at
}

// The times of the looks at what listens, from the start of the command; then each minute.
var looks = []time.Duration{2 * time.Second, 10 * time.Second}

// lookTime is the time between two later looks.
const lookTime = time.Minute

// NotePorts begins to look for servers in the sandbox. The function returns the lines at the end of the command.
func (b *Sandbox) NotePorts() (lines func() string) {
	if b.Listener() == nil { // it has the host's network
		return func() string { return "" }
	}
	ctx, stop := context.WithCancel(context.Background())
	b.agent.mu.Lock()
	n := &portNotes{box: b, network: b.network, stop: stop, done: make(chan struct{})}
	b.agent.mu.Unlock()
	go func() {
		defer close(n.done)
		lookAtTimes(ctx, b.Done(), n.look)
	}()
	return n.lines
}

// lookAtTimes calls look at the times of looks, and then each lookTime, until ctx or the sandbox ends.
func lookAtTimes(ctx context.Context, ended <-chan struct{}, look func()) {
	began := time.Now()
	for i := 0; ; i++ {
		next := lookTime
		if i < len(looks) {
			next = time.Until(began.Add(looks[i]))
		}
		select {
		case <-ctx.Done():
			return
		case <-ended:
			return
		case <-time.After(next):
			look()
		}
	}
}

// temporary is the first port that the kernel chooses for a socket that is bound to port 0: ip_local_port_range, ip(7). Test servers
// have such ports, and nobody means to open them.
const temporary = 32768

// proxySockets is the number of sockets of a sandbox in which nobody else has any: the one that listens for the proxy.
const proxySockets = 1

// look notes what listens in the sandbox.
func (n *portNotes) look() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, port := range loopback.Listening(n.box.PID(), proxySockets) {
		if at := strings.HasSuffix(sandbox.ProxyAddress, fmt.Sprint(":", port)); at || port >= temporary || slices.Contains(n.seen, port) ||
			n.network.leads(port) {
			continue
		}
		n.seen = append(n.seen, port)
	}
}

// leads reports whether a port of the sandbox leads over its border.
func (n *network) leads(port uint16) bool {
	n.portLock.Lock()
	defer n.portLock.Unlock()
	return slices.Contains(n.inside, port) || slices.ContainsFunc(n.published, func(p publication) bool { return p.Inside == port })
}

// maxListed bounds the ports of a line.
const maxListed = 3

// lines returns what the operator is told.
func (n *portNotes) lines() string {
	n.stop()
	<-n.done
	n.look()
	n.mu.Lock()
	defer n.mu.Unlock()
	refused := loopback.RefusedIn(n.box.PID()) - int(n.network.led.Load()) // localhost is ::1 first, which leads nowhere
	switch {
	case len(n.seen) > 0:
		var names []string
		slices.Sort(n.seen)
		for _, port := range n.seen[:min(len(n.seen), maxListed)] {
			names = append(names, strconv.Itoa(int(port)))
		}
		opens := "opens it"
		if len(names) > 1 {
			opens = "opens the first"
		}
		return fmt.Sprintf("it listened on %s inside: --publish %s %s", strings.Join(names, ", "), names[0], opens)
	case refused > 0:
		what := "a connection to 127.0.0.1 was"
		if refused > 1 {
			what = fmt.Sprintf("%d connections to 127.0.0.1 were", refused)
		}
		return what + " refused inside, where it is the sandbox's own: --host-port PORT leads to a service of this host"
	}
	return ""
}
