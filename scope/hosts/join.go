package hosts

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/scope/network"
)

// Join returns the network of a definition n with more: the lesser of the two kinds, the rules of both, and the limits of
// both. For a host and port that n allows, the rules of n hold alone. A network without a kind is absent.
func (n Network) Join(more Network, presets map[string]*Preset) (Network, error) {
	if more.Kind == "" {
		return n, nil
	}
	all, add := n.with(presets), more.with(presets)
	if all.Kind = cmp.Or(n.Kind, more.Kind); more.Kind.Less(all.Kind) {
		all.Kind = more.Kind
	}
	if all.Kind != Rules {
		return Network{Kind: all.Kind}, nil
	}
	all.Requests, all.Bytes = slices.Concat(n.Requests, more.Requests), slices.Concat(n.Bytes, more.Bytes)
	all.Rules.Deny = slices.Concat(n.Rules.Deny, more.Rules.Deny)
	all.Rules.Ask = slices.Concat(n.Rules.Ask, more.Rules.Ask)
	all.Rules.Others = n.Rules.Others || more.Rules.Others
	own := slices.Clone(all.Rules.Allow)
	for _, rule := range add.Rules.Allow {
		if rule.Ports = portsBeside(rule, own); len(rule.Ports) == 0 {
			continue
		}
		all.Rules.Allow = append(all.Rules.Allow, rule)
		if c, ok := add.Credentials[rule.Secret]; ok {
			if err := all.addCredential(rule.Secret, c); err != nil {
				return all, err
			}
		}
	}
	_, err := network.Compile(all.Rules)
	return all, err
}

// portsBeside returns the ports of a rule for which no rule of own has the host.
func portsBeside(rule network.HostRule, own []network.HostRule) []uint16 {
	ports := func(r network.HostRule) []uint16 {
		if len(r.Ports) == 0 {
			return []uint16{443, 80}
		}
		return r.Ports
	}
	host, _ := network.ParseHostPattern(rule.Host) // rules were compiled before
	free := slices.Clone(ports(rule))
	for _, o := range own {
		if other, _ := network.ParseHostPattern(o.Host); other == host {
			free = slices.DeleteFunc(free, func(p uint16) bool { return slices.Contains(ports(o), p) })
		}
	}
	return free
}

// Excess is something that a policy allows and another one does not. Without a host in its rule it is about every address.
type Excess struct {
	network.Excess
	Lost  string // a limit that the policy has not
	Opens string // a port that leads over the border of the sandbox; the other fields are empty
}

// Text returns the connection or the request that shows it.
func (e Excess) Text() string {
	return strings.TrimSpace(fmt.Sprintf("%s %s:%d%s", e.Method, e.Host, e.Port, e.Path))
}

// Excess returns the connections, requests, credentials and limits that h allows and was does not, also in runs with a login.
func (h *Policy) Excess(was *Policy) (all []Excess) {
	switch {
	case h.Kind() == None || was.Kind() == HostNetwork:
		return nil
	case h.Kind() == HostNetwork:
		return []Excess{{}}
	}
	var rules *network.Rules
	if was.Kind() == Rules {
		rules = was.rules
	}
	for _, text := range h.portsBeyond(was) {
		all = append(all, Excess{Opens: text})
	}
	runs := map[string]bool{"": true}
	for _, of := range []*Policy{h, was} {
		if of != nil {
			for login := range of.logins {
				runs[login] = true
			}
		}
	}
	for _, login := range slices.Sorted(maps.Keys(runs)) {
		in, _ := h.For(login)
		before := rules
		if had, ok := was.For(login); ok && rules != nil {
			before = had.rules
		}
		for _, e := range in.rules.Excess(before) {
			if !slices.ContainsFunc(all, func(o Excess) bool { return reflect.DeepEqual(o.Excess, e) }) {
				all = append(all, Excess{Excess: e})
			}
		}
	}
	for _, rule := range h.network.Rules.Allow { // a variable that both have, with another credential
		had, ok := was.Credentials()[rule.Secret]
		told := func(o Excess) bool { return reflect.DeepEqual(o.Allows, rule) }
		if ok && !reflect.DeepEqual(had, h.network.Credentials[rule.Secret]) && !slices.ContainsFunc(all, told) {
			all = append(all, Excess{Excess: network.Excess{Allows: rule}})
		}
	}
	if was.Kind() == Rules {
		for _, rate := range slices.Concat(was.network.Requests, was.network.Bytes) {
			if !slices.Contains(slices.Concat(h.network.Requests, h.network.Bytes), rate) {
				all = append(all, Excess{Excess: network.Excess{Undecided: true}, Lost: rate.String()})
			}
		}
	}
	return all
}
