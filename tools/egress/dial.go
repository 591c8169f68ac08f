package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"
)

// ErrAddress is the error of a connection to an address that is not allowed.
var ErrAddress = errors.New("the address is not allowed")

// Dialer connects to public addresses that are not this host's own, and to the others that Pinned allows. With Upstream
// it reaches hosts by that proxy, but for addresses that Pinned allows. It ignores proxy variables.
type Dialer struct {
	// Pinned are address ranges that are allowed though they are not public.
	Pinned []netip.Prefix

	// Upstream is the company's proxy; nil: there is none.
	Upstream *Upstream

	// Local returns why nobody may connect to a port of this host's loopback, after the connection was made. nil: Pinned decides alone.
	Local func(port uint16) error

	// Lookup resolves a name; nil is the system's resolver.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
}

const (
	dialTime   = 10 * time.Second // for one connection, resolution included
	maxAnswers = 16               // addresses of one name that are tried
)

// DialContext connects to addr ("host:port") over TCP. The error wraps
// ErrAddress when the name has no address that is allowed. A name with both
// kinds of addresses is refused: an honest name has no private ones.
func (d *Dialer) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	if network != "tcp" && network != "tcp4" && network != "tcp6" {
		return nil, fmt.Errorf("%w: network %q", ErrAddress, network)
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	deadline, _ := ctx.Deadline()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	if d.goesUp(host) {
		return d.Upstream.connect(ctx, d, host, port)
	}
	all, err := d.resolve(ctx, host)
	if err != nil {
		return nil, err
	}
	var errs []error
	for i, ip := range all {
		// An address that does not answer leaves time for the others.
		dialer := net.Dialer{Timeout: time.Until(deadline) / time.Duration(len(all)-i)}
		conn, err := dialer.DialContext(ctx, network, net.JoinHostPort(ip.String(), port))
		if err == nil {
			err = d.local(conn)
		}
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// local closes a connection to a port that Local refuses.
func (d *Dialer) local(c net.Conn) error {
	to, ok := c.RemoteAddr().(*net.TCPAddr)
	if d.Local == nil || !ok || !to.IP.IsLoopback() {
		return nil
	}
	err := d.Local(uint16(to.Port))
	if err != nil {
		c.Close()
		err = fmt.Errorf("%w: %w", ErrAddress, err)
	}
	return err
}

// goesUp reports whether a host is reached by the upstream proxy.
func (d *Dialer) goesUp(host string) bool {
	ip, err := netip.ParseAddr(host)
	return d.Upstream != nil && (err != nil || !d.pinned(ip.Unmap()))
}

func (d *Dialer) pinned(ip netip.Addr) bool {
	return slices.ContainsFunc(d.Pinned, func(p netip.Prefix) bool { return ip.Zone() == "" && p.Contains(ip) })
}

func (d *Dialer) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return d.checked([]netip.Addr{ip})
	}
	lookup := d.Lookup
	if lookup == nil {
		lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	all, err := lookup(ctx, host)
	if err != nil {
		return nil, err
	}
	return d.checked(all[:min(len(all), maxAnswers)])
}

func (d *Dialer) checked(all []netip.Addr) ([]netip.Addr, error) {
	for i, ip := range all {
		ip = ip.Unmap()
		if d.pinned(ip) {
			all[i] = ip
			continue
		}
		if ip.Zone() != "" || !Public(ip) {
			return nil, fmt.Errorf("%w: %v is not public", ErrAddress, ip)
		}
		own, err := ownAddress(ip)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrAddress, err)
		}
		if own {
			return nil, fmt.Errorf("%w: %v is this host's own", ErrAddress, ip)
		}
		all[i] = ip
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%w: the name has no address", ErrAddress)
	}
	return all, nil
}

// ownAddress reports whether an address is one of this host's interfaces. What listens
// there often takes such a connection for one from the inside.
func ownAddress(ip netip.Addr) (bool, error) {
	all, err := net.InterfaceAddrs()
	return slices.ContainsFunc(all, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		return ok && n.IP.Equal(ip.AsSlice())
	}), err
}

// special are the ranges that are not globally reachable, or that embed another
// address: the IANA special-purpose address registries (RFC 6890).
var special = func() (all []netip.Prefix) {
	for _, text := range []string{
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24",
		"192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24",
		"203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
		"::/96", "::ffff:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
		"5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
	} {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}()

// Public reports whether an address is one of the global Internet. An
// IPv4-mapped address is judged as the IPv4 address.
func Public(ip netip.Addr) bool {
	ip = ip.Unmap()
	return ip.IsValid() && ip.IsGlobalUnicast() && !slices.ContainsFunc(special, func(p netip.Prefix) bool { return p.Contains(ip) })
}
