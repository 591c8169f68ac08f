package hosts

import (
	"slices"
	"strings"

	"github.com/scopefs/scopefs/scope/network"
)

// LoginSecret returns the name of the credential of rules with the login of a program.
func LoginSecret(program string) string { return "login:" + program }

// compile compiles a network with the rules of its presets. A rule with a login holds in the runs of that program that use
// its login. There it replaces the other rules for its host: a request has one credential.
func compile(all Network) *Policy {
	h := &Policy{network: all}
	if all.Kind != Rules {
		return h
	}
	h.rules, _ = network.Compile(rulesOf(all.Rules, ""))
	h.logins = map[string]*Policy{}
	for _, rule := range slices.Concat(all.Rules.Allow, all.Rules.Ask) {
		if rule.Login != "" && h.logins[rule.Login] == nil {
			rules, _ := network.Compile(rulesOf(all.Rules, rule.Login))
			h.logins[rule.Login] = &Policy{network: all, rules: rules, login: rule.Login}
		}
	}
	return h
}

// rulesOf returns the rules of a run with the login of a program; "" is one without. Nothing in ask or deny gives way.
func rulesOf(all network.Spec, login string) network.Spec {
	for _, list := range []*[]network.HostRule{&all.Ask, &all.Allow} {
		was := *list
		*list = slices.DeleteFunc(slices.Clone(was), func(r network.HostRule) bool {
			return r.Login != login && (r.Login != "" || slices.ContainsFunc(was, func(o network.HostRule) bool {
				return o.Login == login && strings.EqualFold(o.Host, r.Host)
			}))
		})
	}
	return all
}

// For returns the hosts of a run of a program that uses its login, and whether a rule has that login. Without one the
// run has the hosts of any other.
func (h *Policy) For(program string) (own *Policy, ok bool) {
	if h == nil || h.logins[program] == nil {
		return h, false
	}
	narrow := *h.logins[program]
	narrow.caller, narrow.by, narrow.member = h.caller, h.by, h.member
	return &narrow, true
}

// uses reports whether a rule of a run with a login has a credential.
func (h *Policy) uses(name string) bool {
	rules := rulesOf(h.network.Rules, h.login)
	return slices.ContainsFunc(slices.Concat(rules.Allow, rules.Ask), func(r network.HostRule) bool { return r.Secret == name })
}
