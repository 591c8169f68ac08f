// Package hosts decides which hosts a sandbox may connect to.
//
// A definition, a server and a runner have a [Network]. With the rules of its presets
// it compiles to a [Policy], which decides about each connection and each request.
package hosts

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/network"
)

// Policy decides about the connections of one sandbox: of an agent, of one of its
// servers, or of a runner. It is immutable and safe for concurrent use. A nil
// Hosts allows nothing.
//
// In a task, a connection must be allowed by the member and by its callers; see
// [Grants.Within].
type Policy struct {
	network Network
	rules   *network.Rules // of Rules
	login   string         // the program whose run this is for; "": none
	logins  map[string]*Policy

	caller *Policy  // nil: none
	by     scope.ID // whose caller is
	member scope.ID // that by would have to widen; "" in the hosts of a server
}

// Compile compiles a network. Rules that do not compile, in a definition made in
// code, allow nothing.
func Compile(n Network, presets map[string]*Preset) *Policy {
	all := n.with(presets)
	all.Kind = cmp.Or(n.Kind, None)
	return compile(all)
}

// With returns h with the rules of further presets, which replace none of its own. A sandbox without a network gets one of them.
func (h *Policy) With(presets map[string]*Preset, names []string) *Policy {
	if h == nil || len(names) == 0 || h.network.Kind == HostNetwork {
		return h
	}
	all := h.network
	all.Presets = names // the rules have those of before
	all = all.with(presets)
	all.Kind = Rules
	more := compile(all)
	more.caller, more.by, more.member = h.caller, h.by, h.member
	return more
}

// Network returns the network that h was compiled from, with the rules of its presets.
func (h *Policy) Network() Network { return h.network }

// Kind returns how much of the network a sandbox has: the least of the member's and
// its callers'.
func (h *Policy) Kind() Kind {
	if h == nil {
		return None
	}
	kind := h.network.Kind
	if h.caller != nil && h.caller.Kind().Less(kind) {
		kind = h.caller.Kind()
	}
	return kind
}

// Less reports whether a sandbox with network k reaches less than one with o.
func (k Kind) Less(o Kind) bool {
	order := []Kind{None, Rules, HostNetwork}
	return slices.Index(order, k) < slices.Index(order, o)
}

// Connect decides about a connection to a host in the form of [scope.Parse], and
// returns how it is made.
func (h *Policy) Connect(host string, port uint16) (scope.Decision, network.Route) {
	own, route := h.connect(host, port)
	if h == nil || h.caller == nil || !own.Allow && !own.Ask {
		return own, route
	}
	theirs, through := h.caller.Connect(host, port)
	d := h.stricter(own, theirs)
	if !d.Allow && !d.Ask {
		return d, network.Route{}
	}
	if h.caller.Kind() == HostNetwork { // which reaches every address
		return d, route
	}
	if !route.Address.IsValid() && route.CA == "" {
		route.Address, route.CA = through.Address, through.CA
	}
	if route.Address != through.Address || route.CA != through.CA {
		return h.blame(scope.Decision{Kind: scope.KindAddress, Rule: "another address or ca", Remedy: "give " + host + " the same address and ca"}), network.Route{}
	}
	route.Intercept = route.Intercept || through.Intercept
	return d, route
}

func (h *Policy) connect(host string, port uint16) (scope.Decision, network.Route) {
	switch {
	case h == nil || h.network.Kind == None:
		return scope.Decision{Kind: scope.KindHost, Rule: "network: none", Remedy: fmt.Sprintf("set network: {allow: [%s]}", host), Others: true}, network.Route{}
	case h.network.Kind == HostNetwork:
		return scope.Decision{Allow: true, Kind: scope.KindHost, Rule: "network: host"}, network.Route{}
	}
	return h.rules.Connect(host, port)
}

// Request decides about a request; see [network.Rules.Request]. secret is the variable
// of the member's credential: a member does not use those of its callers.
func (h *Policy) Request(host string, port uint16, method, path string) (d scope.Decision, secret string) {
	if h == nil || h.network.Kind != Rules {
		d, _ = h.connect(host, port)
	} else {
		d, secret = h.rules.Request(host, port, method, path)
	}
	if h != nil && h.caller != nil && (d.Allow || d.Ask) {
		theirs, _ := h.caller.Request(host, port, method, path)
		d = h.stricter(d, theirs)
	}
	return d, secret
}

// stricter returns the decision that holds: the caller's, unless it allows what the
// member's does.
func (h *Policy) stricter(own, theirs scope.Decision) scope.Decision {
	if theirs.Allow || own.Ask && theirs.Ask {
		return own
	}
	return h.blame(theirs)
}

// blame returns a decision of the caller's rules.
func (h *Policy) blame(d scope.Decision) scope.Decision {
	d.Others = false // its own rules say no more
	d.Rule = "caller " + string(h.by) + ": " + d.Rule
	d.Remedy = fmt.Sprintf("for %s: %s", h.by, d.Remedy)
	if h.member != "" {
		d.Remedy += fmt.Sprintf("; or say members: {%s: {may: widen}} there", h.member)
	}
	return d
}

// URL decides about a request for a URL: about the connection and, where requests are
// decided one by one, about the request. The error is that of a URL without a host.
func (h *Policy) URL(method string, u *url.URL) (scope.Decision, network.Route, error) {
	host, err := network.ParseHost(u.Hostname())
	if err != nil {
		return scope.Decision{}, network.Route{}, err
	}
	port := map[string]uint64{"https": 443, "wss": 443, "http": 80, "ws": 80}[u.Scheme]
	if u.Port() != "" {
		port, err = strconv.ParseUint(u.Port(), 10, 16)
	}
	if err != nil || port == 0 {
		return scope.Decision{}, network.Route{}, fmt.Errorf("%q has no port: write https://HOST/PATH, or the port", u.Redacted())
	}
	d, route := h.Connect(host, uint16(port))
	if (d.Allow || d.Ask) && (route.Intercept || u.Scheme == "http" || u.Scheme == "ws") {
		d, _ = h.Request(host, uint16(port), method, cmp.Or(u.EscapedPath(), "/"))
	}
	return d, route, nil
}

// Names returns the hosts that may be connected to, for people.
func (h *Policy) Names() []string {
	if h.Kind() != Rules {
		return nil
	}
	if h.network.Kind == HostNetwork {
		return h.caller.Names()
	}
	names := []string{}
	for _, r := range h.network.Rules.Allow {
		if (r.Login == "" || r.Login == h.login) && !slices.Contains(names, r.Host) {
			names = append(names, r.Host)
		}
	}
	for _, r := range h.network.Rules.Ask {
		names = append(names, r.Host+" (after approval)")
	}
	if h.network.Rules.Others {
		names = append(names, "others after approval")
	}
	return names
}

// Credentials returns the credentials of the rules, by the variable that has the
// placeholder.
func (h *Policy) Credentials() map[string]Credential {
	if h == nil {
		return nil
	}
	all := maps.Clone(h.network.Credentials)
	maps.DeleteFunc(all, func(name string, _ Credential) bool { return h.login != "" && !h.uses(name) })
	return all
}

// Limits returns the limits of requests and of bytes.
func (h *Policy) Limits() (requests, bytes []scope.Rate) {
	if h == nil {
		return nil, nil
	}
	return slices.Clone(h.network.Requests), slices.Clone(h.network.Bytes)
}

// Within returns the hosts of a member in a task of a caller.
func (h *Policy) Within(caller *Policy, by, member scope.ID) *Policy {
	narrow := *h
	narrow.caller, narrow.by, narrow.member = caller, by, member
	return &narrow
}
