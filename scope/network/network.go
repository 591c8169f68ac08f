// Package network decides whether an agent may connect to a host, and make a request to it. It is pure, as package scope is.
//
// A [Spec] holds the rules as a definition states them. [Compile] converts it to [Rules], which decide about connections and requests.
// [ParseHost] returns the form of a host that Rules decide about.
package network

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/scopefs/scopefs/scope"
)

// HostRule names hosts, and the requests to them that it covers. In Deny it has a
// host and ports alone, in Ask no methods and no paths.
type HostRule struct {
	// Host is a name, an IP address, "*.example.org" for every name with one or
	// more labels before example.org, or "*" for every name.
	Host string `json:"host"`

	Ports     []uint16       `json:"ports,omitempty"`   // none: 443 and 80; in Deny: all
	Methods   []string       `json:"methods,omitempty"` // none: all; upper case
	Paths     []string       `json:"paths,omitempty"`   // none: all; doublestar patterns that begin with a slash
	Address   netip.AddrPort `json:"address,omitzero"`  // where the host is; port 0 is the requested port
	CA        string         `json:"ca,omitempty"`      // PEM certificates that sign the host's, where requests are decided; "": the system's
	Secret    string         `json:"secret,omitempty"`  // name of the credential that the proxy adds; "": none
	Login     string         `json:"login,omitempty"`   // program whose login Secret is: see hosts.Policy.For; "": none
	Intercept bool           `json:"intercept,omitempty"`
}

// Intercepts reports whether requests to the hosts are decided one by one.
func (r HostRule) Intercepts() bool {
	return r.Intercept || r.Secret != "" || len(r.Methods) > 0 || len(r.Paths) > 0
}

// Spec is a network policy in its written form.
type Spec struct {
	Deny   []HostRule `json:"deny,omitempty"`
	Ask    []HostRule `json:"ask,omitempty"`
	Allow  []HostRule `json:"allow,omitempty"`
	Others bool       `json:"others,omitempty"` // the operator is asked about hosts without a rule
}

// Route is how an allowed connection is made.
type Route struct {
	Address   netip.AddrPort // not valid: a public address of the host
	CA        string         // see HostRule
	Intercept bool           // requests are decided one by one; otherwise the connection is a tunnel
}

// Rules decide about the connections of one agent. It is immutable and safe
// for concurrent use. The zero Rules allow nothing.
//
// Deny overrides Ask, and Ask overrides Allow, whatever the order of rules. In
// each list the rules with the narrowest host that matches decide alone, and
// rules with the same host add up. So a rule for api.example.org restricts what a
// rule for *.example.org would allow.
type Rules struct {
	deny, ask, allow []hostRule
	others           bool
	compiled         bool
}

type hostRule struct {
	HostRule
	pattern HostPattern
	paths   []string // Paths without braces: see scope.Expand
}

// maxHosts limits the rules of one list.
const maxHosts = 1000

// Compile returns the policy that spec describes. An error names the host,
// the key and the correction.
func Compile(spec Spec) (*Rules, error) {
	n := &Rules{others: spec.Others, compiled: true}
	for _, list := range []struct {
		key   string
		rules []HostRule
		into  *[]hostRule
	}{{"deny", spec.Deny, &n.deny}, {"ask", spec.Ask, &n.ask}, {"allow", spec.Allow, &n.allow}} {
		if len(list.rules) > maxHosts {
			return nil, fmt.Errorf("%s: has more than %d rules", list.key, maxHosts)
		}
		for _, r := range list.rules {
			rule, err := parseHostRule(list.key, r)
			if err == nil {
				err = rule.agrees(*list.into)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %q: %w", list.key, r.Host, err)
			}
			*list.into = append(*list.into, rule)
		}
	}
	return n, nil
}

func parseHostRule(list string, r HostRule) (hostRule, error) {
	pattern, err := ParseHostPattern(r.Host)
	if err != nil {
		return hostRule{}, fmt.Errorf("host: %w", err)
	}
	if list != "allow" && len(r.Methods)+len(r.Paths) > 0 {
		return hostRule{}, errors.New("methods, paths: are for network.allow: remove them")
	}
	if len(r.Ports) == 0 && list != "deny" {
		r.Ports = []uint16{443, 80}
	}
	for _, m := range r.Methods {
		if m == "" || strings.Trim(m, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-") != "" || m == "CONNECT" {
			return hostRule{}, fmt.Errorf("methods: %q is no method: write one such as GET", m)
		}
	}
	var paths []string
	for _, p := range r.Paths {
		if !strings.HasPrefix(p, "/") || len(p) > scope.MaxPattern || !doublestar.ValidatePattern(p) {
			return hostRule{}, fmt.Errorf("paths: %.100q is no pattern: write one that begins with a slash, such as /api/**", p)
		}
		all, err := scope.Expand(p)
		if err != nil {
			return hostRule{}, fmt.Errorf("paths: %.100q %w", p, err)
		}
		paths = append(paths, all...)
	}
	if r.Address.Addr().Zone() != "" {
		return hostRule{}, errors.New("address: has a zone: remove it")
	}
	if pattern.wild && (r.Address.IsValid() || r.Secret != "") {
		return hostRule{}, errors.New("host: an address or a credential is for one host: write its name without *")
	}
	r.Methods, r.Paths, r.Ports = slices.Clone(r.Methods), slices.Clone(r.Paths), slices.Clone(r.Ports)
	return hostRule{r, pattern, paths}, nil
}

// agrees returns an error if an earlier rule for the host has another route.
func (r hostRule) agrees(all []hostRule) error {
	for _, o := range all {
		if o.pattern == r.pattern && o.shares(r.Ports) && (o.Address != r.Address || o.CA != r.CA) {
			return errors.New("two rules for the host differ in address or ca: make them equal")
		}
	}
	return nil
}

// shares reports whether the rule is for one of the ports.
func (r hostRule) shares(ports []uint16) bool {
	return len(r.Ports) == 0 || slices.ContainsFunc(ports, func(p uint16) bool { return slices.Contains(r.Ports, p) })
}

// narrowest returns the rules for a canonical host and a port that decide.
func narrowest(all []hostRule, host string, port uint16) (found []hostRule) {
	for _, r := range all {
		if !r.shares([]uint16{port}) || !r.pattern.Match(host) {
			continue
		}
		if len(found) > 0 && r.pattern.narrower(found[0].pattern) {
			found = nil
		}
		if len(found) == 0 || r.pattern == found[0].pattern {
			found = append(found, r)
		}
	}
	return found
}

// Connect decides about a connection to a host in canonical form; see ParseHost.
// The route is that of a connection that is allowed or approved.
func (n *Rules) Connect(host string, port uint16) (scope.Decision, Route) {
	d, rules := n.decide(host, port, nil)
	var route Route
	for _, r := range rules {
		route.Address, route.CA = r.Address, r.CA
		route.Intercept = route.Intercept || r.Intercepts()
	}
	return d, route
}

// Request decides about a request on a connection. path is as the client wrote
// it, percent-encoded and without the query. secret names the credential of the
// rule that allows it.
func (n *Rules) Request(host string, port uint16, method, path string) (d scope.Decision, secret string) {
	d, rules := n.decide(host, port, &request{method, path})
	if len(rules) > 0 {
		secret = rules[0].Secret
	}
	return d, secret
}

// request is the part of a request that rules match.
type request struct{ method, path string }

// decide returns the rules that decide, of Ask and Allow only.
func (n *Rules) decide(host string, port uint16, r *request) (scope.Decision, []hostRule) {
	if n == nil || !n.compiled {
		return scope.Decision{Kind: scope.KindNothing, Rule: "no network", Remedy: "set network in the definition"}, nil
	}
	if denying := narrowest(n.deny, host, port); len(denying) > 0 {
		rule := "network.deny: " + denying[0].Host
		return scope.Decision{Kind: scope.KindHost, Rule: rule, Remedy: "remove " + denying[0].Host + " from network.deny"}, nil
	}
	if asking := narrowest(n.ask, host, port); len(asking) > 0 {
		return scope.Decision{Ask: true, Kind: scope.KindHost, Rule: "network.ask: " + asking[0].Host, Remedy: remedyAsk}, asking
	}
	named := narrowest(n.allow, host, port)
	allowing := named
	if r != nil {
		allowing = slices.DeleteFunc(slices.Clone(named), func(rule hostRule) bool { return !rule.covers(r) })
	}
	switch {
	case len(allowing) > 0:
		return scope.Decision{Allow: true, Kind: scope.KindHost, Rule: "network.allow: " + allowing[0].text()}, allowing
	case len(named) > 0:
		return scope.Decision{Kind: scope.KindRequest, Rule: "network.allow: " + named[0].text(), Remedy: r.remedy(named[0].Host)}, nil
	case n.others:
		return scope.Decision{Ask: true, Kind: scope.KindHost, Rule: "network.ask: true", Remedy: remedyAsk}, nil
	}
	return scope.Decision{Kind: scope.KindHost, Rule: "network.allow", Remedy: remedy(host, port), Others: true}, nil
}

const remedyAsk = "approve the connection: see scopefs approvals, or add the host to network.allow"

func remedy(host string, port uint16) string {
	if port == 443 || port == 80 {
		return fmt.Sprintf("add {host: %s} to network.allow", host)
	}
	return fmt.Sprintf("add {host: %s, ports: [%d]} to network.allow", host, port)
}

// remedy names the method and, as a pattern, the path. A path that servers may read as another one has no pattern of its own.
func (r *request) remedy(host string) string {
	readings, ok := readPath(r.path)
	if !ok || slices.ContainsFunc(readings, func(path string) bool { return path != readings[0] }) {
		return fmt.Sprintf("widen methods and paths of %s in network.allow: servers read this path in several ways", host)
	}
	return fmt.Sprintf("add %s and %s to methods and paths of %s in network.allow", r.method, scope.QuotePattern(readings[0]), host)
}

// text returns the rule for people.
func (r hostRule) text() string {
	text := r.Host
	if len(r.Methods) > 0 {
		text += " " + strings.Join(r.Methods, ",")
	}
	if len(r.Paths) > 0 {
		text += " " + strings.Join(r.Paths, ",")
	}
	return text
}

func (r hostRule) covers(req *request) bool {
	if len(r.Methods) > 0 && !slices.Contains(r.Methods, req.method) {
		return false
	}
	if len(r.Paths) == 0 {
		return true
	}
	readings, ok := readPath(req.path)
	return ok && !slices.ContainsFunc(readings, func(path string) bool { return !r.matches(path) })
}

// matches reports whether one of the rule's paths matches a reading of a request's path.
func (r hostRule) matches(path string) bool {
	return slices.ContainsFunc(r.paths, func(p string) bool { return doublestar.MatchUnvalidated(p, path) })
}

// readPath returns the paths that servers may read in a percent-encoded path: with an encoded slash as a
// separator, and as part of a component. See PathReadings.
func readPath(path string) (readings []string, ok bool) {
	decoded, err := url.PathUnescape(path)
	if err != nil {
		return nil, false
	}
	if readings, ok = PathReadings(decoded); !ok {
		return nil, false
	}
	kept, err := url.PathUnescape(encodedSlash.Replace(path))
	return append(readings, cuts(kept)...), err == nil
}

var encodedSlash = strings.NewReplacer("%2f", "%252F", "%2F", "%252F")
