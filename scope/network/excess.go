package network

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/excess"
)

// Excess is a connection or request that a network allows, or asks the operator about, and that others deny.
type Excess struct {
	Allows       HostRule // the rule of the network; without a host: its question about every other host
	Asks         bool
	Host         string // these four show it. Without a method: every request
	Port         uint16
	Method, Path string
	Before       scope.Decision
	Undecided    bool // which paths several rules allow together was not compared
	Unseen       bool // both allow the connection, and its requests are not decided one by one any more
}

// Excess returns what the network allows and was does not: one for each rule of the network and each rule that decided before.
func (n *Rules) Excess(was *Rules) (all []Excess) {
	seen, steps := map[string]bool{}, excess.MaxSteps
	hosts, ports, methods := n.names(was)
	for _, host := range hosts {
		for _, port := range ports {
			for _, e := range n.excessAt(was, host, port, methods, &steps) {
				key := fmt.Sprint(e.Allows, e.Asks, e.Before.Kind, e.Before.Rule, e.Undecided, e.Unseen)
				if !seen[key] {
					seen[key] = true
					all = append(all, e)
				}
			}
		}
	}
	place := func(e Excess) int {
		if e.Allows.Host == "" {
			return len(n.allow) + len(n.ask)
		}
		return slices.IndexFunc(slices.Concat(n.allow, n.ask), func(r hostRule) bool { return reflect.DeepEqual(r.HostRule, e.Allows) })
	}
	slices.SortStableFunc(all, func(a, b Excess) int { return place(a) - place(b) })
	return all
}

// excessAt is Excess for one host and port.
func (n *Rules) excessAt(was *Rules, host string, port uint16, methods []string, steps *int) (all []Excess) {
	now, rules := n.decide(host, port, nil)
	old, before := was.decide(host, port, nil)
	if !now.Wider(scope.Decision{}) || !now.Wider(old) && reflect.DeepEqual(rules, before) {
		return nil
	}
	add := func(r *request) {
		now, rules := n.decide(host, port, r)
		old, before := was.decide(host, port, r)
		e := Excess{Asks: now.Ask, Host: host, Port: port, Before: old}
		if len(rules) > 0 {
			e.Allows = rules[0].HostRule
		}
		if r != nil {
			e.Method, e.Path = r.method, r.path
		}
		wider := now.Wider(old)
		if now.Allow && old.Allow {
			wider = e.Allows.Secret != "" && e.Allows.Secret != before[0].Secret ||
				e.Allows.Address != before[0].Address || e.Allows.CA != before[0].CA
		}
		if wider {
			all = append(all, e)
		}
	}
	if !slices.ContainsFunc(slices.Concat(rules, before), func(r hostRule) bool { return len(r.Methods)+len(r.Paths) > 0 }) {
		add(nil)
		decided := slices.ContainsFunc(before, hostRule.Intercepts) && !slices.ContainsFunc(rules, hostRule.Intercepts)
		if all == nil && len(rules) > 0 && decided {
			all = append(all, Excess{Allows: rules[0].HostRule, Asks: now.Ask, Host: host, Port: port, Before: old, Unseen: true})
		}
		return all
	}
	words, decided := pathsOf(slices.Concat(rules, before), steps)
	for _, method := range methods {
		for _, path := range words {
			add(&request{method, path})
		}
		for _, rule := range rules {
			found := slices.ContainsFunc(all, func(e Excess) bool { return reflect.DeepEqual(e.Allows, rule.HostRule) })
			if !found && (!decided || old.Allow && !rule.within(before, method, words)) {
				all = append(all, Excess{Allows: rule.HostRule, Asks: now.Ask, Host: host, Port: port, Undecided: true})
			}
		}
	}
	return all
}

// names returns hosts, ports and methods that stand for all that the rules of two networks distinguish.
func (n *Rules) names(was *Rules) (hosts []string, ports []uint16, methods []string) {
	var rules []hostRule
	for _, of := range []*Rules{n, was} {
		if of != nil {
			rules = slices.Concat(rules, of.deny, of.ask, of.allow)
		}
	}
	ports = []uint16{443, 80}
	for _, r := range rules {
		if !r.pattern.wild {
			hosts = append(hosts, r.pattern.host)
		}
		ports, methods = append(ports, r.Ports...), append(methods, r.Methods...)
	}
	other := func(end string) string { // a name that no narrower rule covers
		name := "any"
		for slices.Contains(hosts, name+end) {
			name += "-other"
		}
		return name + end
	}
	for _, r := range rules {
		if r.pattern.wild && r.pattern.host != "" {
			hosts = append(hosts, other(r.pattern.host))
		}
	}
	end := ".example"
	for slices.ContainsFunc(rules, func(r hostRule) bool {
		return r.pattern.wild && strings.HasSuffix(end, r.pattern.host) && r.pattern.host != ""
	}) {
		end = ".any" + end
		if len(end) > maxHost {
			end = ""
		}
	}
	address := netip.MustParseAddr("192.0.2.1") // which no wildcard covers
	for slices.Contains(hosts, address.String()) {
		address = address.Next()
	}
	hosts = append(hosts, other(end), address.String())
	port, method := uint16(1), "DELETE" // which no rule names
	for slices.Contains(ports, port) {
		port++
	}
	for slices.Contains(methods, method) {
		method += "X"
	}
	return distinct(hosts), distinct(append(ports, port)), distinct(append(methods, method))
}

// distinct returns a list without what is in it twice.
func distinct[T comparable](list []T) (all []T) {
	for _, v := range list {
		if !slices.Contains(all, v) {
			all = append(all, v)
		}
	}
	return all
}

// requestGrammar has the paths of requests that servers read in one way, as far as slashes and dots say.
var requestGrammar = excess.Grammar{
	Next: func(state int, r rune) int { // as pathGrammar, 4: nothing yet, which is state 0
		switch {
		case r < ' ' || r == '\\' || state == 0 && r != '/' || state == 1 && r == '/':
			return -1
		case r == '/' && (state == 2 || state == 3):
			return -1
		case r == '/':
			return 1
		case r == '.' && state < 3:
			return state + 1
		}
		return 4
	},
	Ends: func(state int) bool { return state == 1 || state == 4 },
}

// pathsOf returns paths of requests that stand for all that rules distinguish, and whether these are all. The last is one that only
// a rule without paths covers.
func pathsOf(rules []hostRule, steps *int) (words []string, ok bool) {
	const odd = "//"
	all := []excess.Expression{excess.WildExpression("*")}
	for _, r := range rules {
		for _, path := range r.paths {
			e, ok := excess.GlobExpression(path)
			if !ok {
				return []string{odd}, false
			}
			all = append(all, e)
		}
	}
	ok = excess.Words(requestGrammar, all, steps, func(word string) bool {
		words = append(words, word)
		return true
	})
	return append(words, odd), ok
}

// within reports whether one of the rules covers each request of a method that r covers. Several together may cover each of the
// ways in which servers read a path, and none of them all.
func (r hostRule) within(rules []hostRule, method string, words []string) bool {
	covers := func(r hostRule, word string) bool {
		return (len(r.Methods) == 0 || slices.Contains(r.Methods, method)) && (len(r.Paths) == 0 || r.matches(word))
	}
	return slices.ContainsFunc(rules, func(o hostRule) bool {
		return !slices.ContainsFunc(words, func(word string) bool { return covers(r, word) && !covers(o, word) })
	})
}
