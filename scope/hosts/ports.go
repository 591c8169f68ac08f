package hosts

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/scope"
)

// Ports are ports of 127.0.0.1 that lead over the border of a sandbox.
type Ports struct {
	Published []Publication // ports of the host that lead to listeners of the sandbox
	Host      []uint16      // ports in the sandbox that lead to the same ports of the host
}

func (p Ports) none() bool { return len(p.Published)+len(p.Host) == 0 }

// maxPorts bounds each list.
const maxPorts = 64

// proxyPort is where sandboxes reach their proxy.
const proxyPort = 3128

// Publication is a port of the host that leads to one in the sandbox.
type Publication struct{ At, Inside uint16 }

// ParsePublication parses HOST or HOST:INSIDE.
func ParsePublication(text string) (p Publication, err error) {
	at, inside, both := strings.Cut(text, ":")
	if p.At, err = ParsePort(at); err == nil {
		p.Inside = p.At
		if both {
			p.Inside, err = ParsePort(inside)
		}
	}
	if err == nil && p.Inside == proxyPort {
		err = fmt.Errorf("port %d of a sandbox is that of its proxy: name another", proxyPort)
	}
	if err != nil {
		return p, fmt.Errorf("%w: write PORT, or HOST:INSIDE", err)
	}
	return p, nil
}

// ParsePort parses a port.
func ParsePort(text string) (uint16, error) {
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		return 0, fmt.Errorf("%q is no port: write a number from 1 to %d", text, math.MaxUint16)
	}
	return uint16(port), nil
}

// ParseHostPort parses a port of the host that a sandbox reaches.
func ParseHostPort(text string) (uint16, error) {
	port, err := ParsePort(text)
	if err == nil && port == proxyPort {
		err = fmt.Errorf("port %d of a sandbox is that of its proxy: let the service listen at another", proxyPort)
	}
	return port, err
}

// String returns the publication as ParsePublication takes it.
func (p Publication) String() string {
	if p.At == p.Inside {
		return strconv.Itoa(int(p.At))
	}
	return fmt.Sprintf("%d:%d", p.At, p.Inside)
}

// portList reads a list of ports, each a number or a text.
func portList[T comparable](out *[]T, parse func(string) (T, error)) fields.Field {
	return func(n *yaml.Node) error {
		return fields.EachItem(n, func(item *yaml.Node) error {
			text, err := fields.Scalar(item, "a port", "!!int", "!!str")
			if err != nil {
				return fmt.Errorf("an entry %w", err)
			}
			port, err := parse(text)
			switch {
			case err != nil:
				return err
			case slices.Contains(*out, port):
				return fmt.Errorf("%s is there twice: remove one", text)
			case len(*out) == maxPorts:
				return fmt.Errorf("has more than %d ports", maxPorts)
			}
			*out = append(*out, port)
			return nil
		})
	}
}

func publishField(out *[]Publication) fields.Field {
	return fields.Checked(portList(out, ParsePublication), func() error {
		seen := map[uint16]bool{}
		for _, p := range *out {
			if seen[p.At] {
				return errors.New("a port of the host leads to two of the sandbox: remove one")
			}
			seen[p.At] = true
		}
		return nil
	})
}

func ownPorts(out *[]uint16) fields.Field { return portList(out, ParseHostPort) }

// ports returns the ports of a policy with rules: within those of its callers.
func (h *Policy) ports() (p Ports) {
	if h == nil || h.Kind() != Rules || h.network.Kind != Rules {
		return Ports{}
	}
	p = h.network.Ports
	if h.caller != nil && h.caller.Kind() != HostNetwork {
		theirs := h.caller.ports()
		p.Published = slices.DeleteFunc(slices.Clone(p.Published), func(p Publication) bool { return !slices.Contains(theirs.Published, p) })
		p.Host = slices.DeleteFunc(slices.Clone(p.Host), func(p uint16) bool { return !slices.Contains(theirs.Host, p) })
	}
	return p
}

// Opens returns the ports that lead over the border of the sandbox. A member in a task has those that its callers have as well.
func (h *Policy) Opens() Ports { return h.ports() }

// Publish decides about a connection from a port of the host, 0 for any, to one in the sandbox.
func (h *Policy) Publish(at, inside uint16) scope.Decision {
	for _, p := range h.ports().Published {
		if p.Inside == inside && (at == 0 || p.At == at) {
			return scope.Decision{Allow: true, Kind: scope.KindPort, Rule: "network.publish: " + p.String()}
		}
	}
	return scope.Decision{Kind: scope.KindPort, Rule: "network.publish", Remedy: fmt.Sprintf("set network: {publish: [%d]}", inside)}
}

// HostPort decides about a connection from the sandbox to a port of the host's 127.0.0.1.
func (h *Policy) HostPort(port uint16) scope.Decision {
	if slices.Contains(h.ports().Host, port) {
		return scope.Decision{Allow: true, Kind: scope.KindPort, Rule: fmt.Sprintf("network.host.ports: %d", port)}
	}
	return scope.Decision{Kind: scope.KindPort, Rule: "network.host.ports", Remedy: fmt.Sprintf("set network: {host: {ports: [%d]}}", port)}
}

// PortNames returns the ports in words.
func (h *Policy) PortNames() (all []string) {
	p := h.ports()
	for _, port := range p.Published {
		all = append(all, fmt.Sprintf("a server at port %d here is reached at port %d of the host", port.Inside, port.At))
	}
	for _, port := range p.Host {
		all = append(all, fmt.Sprintf("127.0.0.1:%d is the host's", port))
	}
	return all
}

// portsBeyond returns in words the ports that h opens and was does not.
func (h *Policy) portsBeyond(was *Policy) (all []string) {
	now, before := h.ports(), was.ports()
	for _, p := range now.Published {
		if !slices.Contains(before.Published, p) {
			all = append(all, fmt.Sprintf("port %d of this host's 127.0.0.1 leads to port %d of the sandbox", p.At, p.Inside))
		}
	}
	for _, port := range now.Host {
		if !slices.Contains(before.Host, port) {
			all = append(all, fmt.Sprintf("connects to port %d of this host's 127.0.0.1", port))
		}
	}
	return all
}
