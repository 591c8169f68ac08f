package hosts

import (
	"cmp"
	"slices"

	"github.com/scopefs/scopefs/scope"
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
	_, err := scope.CompileNetwork(all.Rules)
	return all, err
}

// portsBeside returns the ports of a rule for which no rule of own has the host.
func portsBeside(rule scope.HostRule, own []scope.HostRule) []uint16 {
	ports := func(r scope.HostRule) []uint16 {
		if len(r.Ports) == 0 {
			return []uint16{443, 80}
		}
		return r.Ports
	}
	host, _ := scope.ParseHostPattern(rule.Host) // rules were compiled before
	free := slices.Clone(ports(rule))
	for _, o := range own {
		if other, _ := scope.ParseHostPattern(o.Host); other == host {
			free = slices.DeleteFunc(free, func(p uint16) bool { return slices.Contains(ports(o), p) })
		}
	}
	return free
}

// Added is what a policy has beyond another one.
type Added struct {
	Allow, Ask []scope.HostRule // the new rules
	Others     bool             // it asks about hosts without a rule
	Over       []Over
}

// Over is a new rule of a list, and a rule of the other policy that limits the requests to some of the same hosts. It may no
// longer decide about them: of rules in one list those with the narrowest host do, and ask overrides allow.
type Over struct {
	List      string // of Rule: allow or ask
	Rule, Own scope.HostRule
}

// Added returns the rules of h that before does not have.
func (h *Policy) Added(before *Policy) (a Added) {
	if before.Kind() == HostNetwork || h.Kind() != Rules {
		return a
	}
	var was scope.NetworkSpec
	if before.Kind() == Rules {
		was = before.Network().Rules
	}
	now := h.Network().Rules
	a = Added{Allow: rulesAdded(was.Allow, now.Allow), Ask: rulesAdded(slices.Concat(was.Ask, was.Allow), now.Ask), Others: now.Others && !was.Others}
	over := func(list string, rules []scope.HostRule) {
		for _, r := range rules {
			pattern, _ := scope.ParseHostPattern(r.Host) // rules were compiled before
			for _, own := range was.Allow {
				if other, _ := scope.ParseHostPattern(own.Host); len(own.Methods)+len(own.Paths) > 0 && pattern.Meets(other) {
					a.Over = append(a.Over, Over{list, r, own})
				}
			}
		}
	}
	over("allow", a.Allow)
	over("ask", rulesAdded(was.Ask, now.Ask))
	return a
}

// rulesAdded returns the rules of now whose host, ports and requests no rule of was has.
func rulesAdded(was, now []scope.HostRule) []scope.HostRule {
	return slices.DeleteFunc(slices.Clone(now), func(r scope.HostRule) bool {
		return slices.ContainsFunc(was, func(o scope.HostRule) bool {
			return o.Host == r.Host && o.Secret == r.Secret && slices.Equal(o.Ports, r.Ports) && slices.Equal(o.Methods, r.Methods) && slices.Equal(o.Paths, r.Paths)
		})
	})
}
